// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// UnpinnedLink is an XDP program that is attached to a device without a pin. The kernel detaches it when the process ends,
// however it ends. It is for a program that must not outlive its process. Its methods must not be called concurrently.
type UnpinnedLink struct {
	link link.Link
	hook Hook
}

// AttachUnpinned attaches a program to the XDP hook until Close or the end of the process. It needs no BPF file system, and
// uses only Device, AttachPoint and Kind of the Hook. The program may be closed afterwards. Errors are those of Attach.
func (h Hook) AttachUnpinned(p *ebpf.Program) (*UnpinnedLink, error) {
	if h.AttachPoint != XDP {
		return nil, fmt.Errorf("attaching to the %s hook without a pin: %w: only the xdp hook supports this", h.AttachPoint, ebpf.ErrNotSupported)
	}
	if h.Device <= 0 {
		return nil, fmt.Errorf("attaching to device %d: invalid device index", h.Device)
	}
	l, err := h.linkXDP(p)
	if err != nil {
		return nil, err
	}
	return &UnpinnedLink{link: l, hook: h}, nil
}

// Replace atomically replaces the attached program: every packet is handled by exactly one of them.
func (l *UnpinnedLink) Replace(p *ebpf.Program) error {
	return (&xdpOrTCXLink{l.link}).replace(l.hook, p)
}

// Status returns the hook's present status: Attached, or Defunct if the device is gone or the program was detached by force.
// Unlike Hook.Status it works in every network namespace.
func (l *UnpinnedLink) Status() (Status, error) {
	st, err := (&xdpOrTCXLink{l.link}).status(l.hook)
	if err == nil {
		st.Kind = l.Kind()
	}
	return st, err
}

// Kind returns XDPNative or XDPGeneric, as chosen when the program was attached.
func (l *UnpinnedLink) Kind() Kind {
	if l.hook.Kind == XDPGeneric {
		return XDPGeneric
	}
	return XDPNative
}

// Close detaches the program. The program is off when Close returns.
func (l *UnpinnedLink) Close() error {
	_ = l.link.Detach() // fails with one of several errors if the program is off already, for example because the device is gone
	if err := l.link.Close(); err != nil {
		return fmt.Errorf("detaching from the XDP hook: %w", err)
	}
	return nil
}
