// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
)

// AttachPoint is the point in a device's packet path at which a program runs.
type AttachPoint uint8

// The attach points. At Egress and Ingress (tc) the program is attached in front of all others, since any other may end the
// processing (TC_ACT_OK does). It must return TC_ACT_UNSPEC so that the others run too. Another program may later be attached
// in front of it: Order reports that, and the next Attach moves the program to the front again.
const (
	Egress AttachPoint = iota + 1
	Ingress
	XDP
)

// Kind is the kernel mechanism that attaches a program.
type Kind uint8

// The kinds. Best is TCX if the kernel supports it (Linux 6.6), else Clsact. At XDP it is XDPNative.
const (
	Best Kind = iota
	TCX
	Clsact
	XDPNative
)

// String returns the kind's name, such as "tcx".
func (k Kind) String() string {
	return [...]string{"best", "tcx", "clsact", "xdp"}[min(k, XDPNative)]
}

// String returns the attach point's name, such as "egress".
func (p AttachPoint) String() string {
	return [...]string{"nowhere", "egress", "ingress", "xdp"}[min(p, XDP)]
}

// Hook is the attachment of one program to one device.
type Hook struct {
	// Device is the index of the network device. Zero stands for a device that is gone or was renamed: Status and Detach
	// work, wherever the program is attached, and Attach fails.
	Device      int
	AttachPoint AttachPoint
	// Kind is the kind to attach the program with.
	Kind Kind
	// Pin is the path at which the link, or for Clsact the program, is pinned. Its directory must exist in a BPF file
	// system, which allows no dots in names.
	Pin string
	// QdiscPin is the path of a pin that records that this package added the device's clsact qdisc. All hooks of a device
	// share it.
	QdiscPin string
	// Name identifies the filter of Clsact. Filters with another name are kept.
	Name string
}

// State is the state of a hook.
type State uint8

// The states.
const (
	// Detached: nothing is pinned.
	Detached State = iota
	// Attached: the program runs for the device's packets.
	Attached
	// Defunct: the program is pinned but not attached, since its device is gone or it was detached by force.
	Defunct
	// OnOtherDevice: the program is attached to another device than Hook.Device, which may have had the same name. The other device may be in
	// another network namespace, and have the same index there.
	OnOtherDevice
	// Replaced: another program took this one's place.
	Replaced
)

// String returns the state's name, such as "attached".
func (s State) String() string {
	return [...]string{"detached", "attached", "defunct", "on-other-device", "replaced"}[min(s, Replaced)]
}

// Status is the state of a hook and its programs.
type Status struct {
	State State
	// Kind is Best when Detached.
	Kind Kind
	// Device is the index of the device to which the program is attached, or zero.
	Device int
	// Program is the ID of this hook's program.
	Program ebpf.ProgramID
	// Other is the ID of the program that replaced it.
	Other ebpf.ProgramID
}

// Attach attaches the program. A program that is already attached by this hook is replaced
// atomically: every packet is handled by exactly one of them. If another program has come in
// front of it, the new one is attached in front of that before the old one is detached. In
// between, packets may be handled by both. With TCX it must not be the old one then. If the
// hook's state is Defunct, OnOtherDevice or Replaced, it is detached first. The program may be
// closed afterwards.
//
// Errors wrap a *BusyError if another program occupies the attach point, and ebpf.ErrNotSupported if the kernel does not
// support the hook. A failed Attach adds nothing, and the previous program keeps running. The exception is a program that
// had to be detached first, if the process has no CAP_SYS_ADMIN.
func (h Hook) Attach(p *ebpf.Program) error {
	if h.Device <= 0 {
		return fmt.Errorf("attaching to device %d: invalid device index", h.Device)
	}
	held, err := h.loadPin()
	if err != nil {
		return err
	}
	if held == nil {
		return h.create(p)
	}
	defer held.close()
	st, err := held.status(h)
	if err != nil {
		return err
	}
	if st.State != Attached || !h.acceptsKind(st.Kind) {
		return h.reattach(held, st, p)
	}
	inFront, err := h.InFront()
	if err != nil {
		return err
	}
	if !inFront {
		return held.moveToFront(h, p)
	}
	return held.replace(h, p)
}

// reattach detaches the present program and attaches the new one. If that fails, it attaches the old program again, for
// which it needs CAP_SYS_ADMIN.
func (h Hook) reattach(held attachment, st Status, p *ebpf.Program) error {
	var ran *ebpf.Program
	if st.State == Attached || st.State == OnOtherDevice {
		var err error
		if ran, err = ebpf.NewProgramFromID(st.Program); err != nil && !errors.Is(err, fs.ErrPermission) { // needs CAP_SYS_ADMIN
			return fmt.Errorf("opening the attached program: %w", err)
		}
		defer ran.Close() // Close accepts nil
	}
	if err := held.detach(h); err != nil {
		return err
	}
	err := h.create(p)
	if err != nil && ran != nil {
		before := h
		before.Device, before.Kind = st.Device, st.Kind
		err = errors.Join(err, before.create(ran))
	}
	return err
}

// Status returns the hook's present status, as reported by the kernel.
func (h Hook) Status() (Status, error) {
	held, err := h.loadPin()
	if err != nil || held == nil {
		return Status{}, err
	}
	defer held.close()
	return held.status(h)
}

// Detach detaches the program if it is attached, and removes the pin. It returns nil if there is nothing to detach.
func (h Hook) Detach() error {
	held, err := h.loadPin()
	switch {
	case err != nil:
		return err
	case held == nil:
		return h.removeUnpinnedFilter()
	}
	defer held.close()
	return held.detach(h)
}

// acceptsKind reports whether a program that is attached with that kind may keep it.
func (h Hook) acceptsKind(k Kind) bool {
	return h.Kind == Best || h.Kind == k
}

func (h Hook) create(p *ebpf.Program) error {
	switch {
	case h.AttachPoint == XDP:
		return h.createXDP(p)
	case h.Kind == Clsact:
		return h.createFilter(p)
	}
	err := h.createTCX(p)
	if h.Kind == Best && errors.Is(err, ebpf.ErrNotSupported) {
		return h.createFilter(p)
	}
	return err
}

// attachment is a pinned link, or a pinned program with its filter.
type attachment interface {
	status(h Hook) (Status, error)
	replace(h Hook, p *ebpf.Program) error
	moveToFront(h Hook, p *ebpf.Program) error
	detach(h Hook) error
	close()
}

// loadPin returns nil if nothing is pinned.
func (h Hook) loadPin() (attachment, error) {
	held, err := loadLink(h.Pin)
	if errors.Is(err, errNoLink) {
		held, err = loadFilter(h.Pin)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the BPF pin %s: %w (if it is not ropewalk's, remove it: `rm -r %s`)", h.Pin, err, h.Pin)
	}
	return held, nil
}
