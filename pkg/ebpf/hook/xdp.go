// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func (h Hook) createXDP(p *ebpf.Program) error {
	l, err := AttachXDP(h.Device, p)
	if err != nil {
		return err
	}
	return h.pinLink(l)
}

// AttachXDP attaches a program to a device's XDP hook, without a pin: the kernel detaches it when
// the process ends, however it ends. The program may be closed afterwards. Errors are as from
// Hook.Attach.
func AttachXDP(device int, p *ebpf.Program) (link.Link, error) {
	if err := checkXDPFree(device); err != nil {
		return nil, err
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: device, Flags: link.XDPDriverMode})
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST): // attached since the check
		return nil, fmt.Errorf("attaching to the XDP hook: %w", &BusyError{AttachPoint: XDP})
	case errors.Is(err, unix.EOPNOTSUPP):
		return nil, fmt.Errorf("attaching to the XDP hook: the device's driver does not support native XDP: %w (%w)", ebpf.ErrNotSupported, err)
	}
	return nil, fmt.Errorf("attaching to the XDP hook (the driver may need a smaller MTU): %w", err)
}

// checkXDPFree returns a BusyError if the device has an XDP program. A device cannot have a native and a generic one.
func checkXDPFree(device int) error {
	l, err := netlink.LinkByIndex(device)
	if err != nil {
		return fmt.Errorf("reading device index %d: %w", device, err)
	}
	x := l.Attrs().Xdp
	if x == nil || !x.Attached {
		return nil
	}
	id := ebpf.ProgramID(x.ProgId)
	return fmt.Errorf("attaching to the XDP hook: %w",
		&BusyError{AttachPoint: XDP, Program: id, Name: ProgramName(id)})
}

// ProgramName returns the name of a loaded program, or "" if it cannot be read.
func ProgramName(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return ""
	}
	return info.Name
}
