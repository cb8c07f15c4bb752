// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func (h Hook) createXDP(p *ebpf.Program) error {
	l, err := h.linkXDP(p)
	if err != nil {
		return err
	}
	return h.keep(l)
}

func (h Hook) linkXDP(p *ebpf.Program) (link.Link, error) {
	if err := h.xdpBusy(); err != nil {
		return nil, err
	}
	mode := link.XDPDriverMode
	if h.Kind == XDPGeneric {
		mode = link.XDPGenericMode
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: h.Device, Flags: mode})
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST): // came since it was looked
		return nil, fmt.Errorf("attaching to the XDP hook: %w", &BusyError{Device: h.Device, Place: XDP})
	case errors.Is(err, unix.EOPNOTSUPP):
		return nil, fmt.Errorf("attaching to the XDP hook: the device's driver runs no XDP natively: %w (%w)", ebpf.ErrNotSupported, err)
	}
	return nil, fmt.Errorf("attaching to the XDP hook (the driver may want a smaller MTU): %w", err)
}

// xdpBusy tells whose program is there. A device takes one in each mode, but not natively and in generic mode at once.
func (h Hook) xdpBusy() error {
	l, err := netlink.LinkByIndex(h.Device)
	if err != nil {
		return fmt.Errorf("looking at device %d: %w", h.Device, err)
	}
	x := l.Attrs().Xdp
	if x == nil || !x.Attached {
		return nil
	}
	id := ebpf.ProgramID(x.ProgId)
	return fmt.Errorf("attaching to the XDP hook: %w",
		&BusyError{Device: h.Device, Place: XDP, Program: id, Name: ProgramName(id)})
}

// xdpKind tells how the device runs its XDP program.
func xdpKind(device int) Kind {
	l, err := netlink.LinkByIndex(device)
	if err == nil && l.Attrs().Xdp != nil && l.Attrs().Xdp.AttachMode == nl.XDP_ATTACHED_SKB {
		return XDPGeneric
	}
	return XDPNative
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
