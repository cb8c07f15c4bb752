// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Held is an XDP program that a process holds on a device without a pin: however the process ends, the kernel takes the
// program off then, so that one which only makes sense beside its process never outlives it. Its methods may not be used
// concurrently.
type Held struct {
	link link.Link
	hook Hook
}

// Hold attaches a program to the XDP hook until Close, and at the longest until the process ends. No BPF file system is
// needed; of the Hook only Device, Place and Kind count. The program may be closed afterwards. Errors are those of Attach.
func (h Hook) Hold(p *ebpf.Program) (*Held, error) {
	if h.Place != XDP {
		return nil, fmt.Errorf("holding a program at the %s hook: %w: only XDP's is held without a pin", h.Place, ebpf.ErrNotSupported)
	}
	if h.Device <= 0 {
		return nil, fmt.Errorf("attaching to device %d: no such device", h.Device)
	}
	l, err := h.linkXDP(p)
	if err != nil {
		return nil, err
	}
	return &Held{link: l, hook: h}, nil
}

// Replace puts another program in the place of the one that is held: no packet meets none or both.
func (h *Held) Replace(p *ebpf.Program) error { return (&pinned{h.link}).replace(h.hook, p) }

// Status tells how the hook is, by what the kernel says now: Attached, or Defunct when its device is gone or somebody
// detached the program by force. Unlike Hook.Status it is right in whatever network namespace the thread is.
func (h *Held) Status() (Status, error) {
	st, err := (&pinned{h.link}).status(h.hook)
	if err == nil {
		st.Kind = h.Kind()
	}
	return st, err
}

// Kind is XDPNative or XDPGeneric, which stays as it was when the program was attached.
func (h *Held) Kind() Kind {
	if h.hook.Kind == XDPGeneric {
		return XDPGeneric
	}
	return XDPNative
}

// Close takes the program off; it is done when it returns.
func (h *Held) Close() error {
	_ = h.link.Detach() // what is off already, as where the device is gone, says so in several ways
	if err := h.link.Close(); err != nil {
		return fmt.Errorf("detaching from the XDP hook: %w", err)
	}
	return nil
}
