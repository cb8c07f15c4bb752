// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// UnpinnedLink is an XDP program that is attached to a device without a pin. The kernel detaches it when the process ends,
// however it ends. It is for a program that must not outlive its process. Its methods must not be called concurrently.
type UnpinnedLink struct{ link link.Link }

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
	return &UnpinnedLink{l}, nil
}

// Close detaches the program. The program is off when Close returns.
func (l *UnpinnedLink) Close() error {
	_ = l.link.Detach() // fails with one of several errors if the program is off already, for example because the device is gone
	if err := l.link.Close(); err != nil {
		return fmt.Errorf("detaching from the XDP hook: %w", err)
	}
	return nil
}
