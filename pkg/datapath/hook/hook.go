// SPDX-License-Identifier: Apache-2.0

// Package hook holds eBPF programs on network devices, so that they stay when the process ends: tcx links where the
// kernel has them (Linux 6.6), filters on a clsact qdisc elsewhere, and XDP links. What is held is pinned in a BPF file
// system, which is the only record of it. The package knows nothing of what the programs do.
//
// Every function works in the network namespace of the calling thread and keeps no state. Two processes must not change
// one hook at the same time; that is for the caller to see to.
package hook

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
)

// Place is where on a device a program is called.
type Place uint8

// The places. At the two of tc, the program is put before all others, since any of those may end the walk (TC_ACT_OK
// does); so that the others run too, it must return TC_ACT_UNSPEC.
const (
	Egress Place = iota + 1
	Ingress
	XDP
)

// Kind is what holds a program at its place.
type Kind uint8

// The kinds. Best is TCX where the kernel has it, else Clsact; at XDP it is XDPNative.
const (
	Best Kind = iota
	TCX
	Clsact
	XDPNative
	XDPGeneric
)

// String is the kind's name, "tcx" for one.
func (k Kind) String() string {
	return [...]string{"best", "tcx", "clsact", "xdp", "xdp-generic"}[min(k, XDPGeneric)]
}

// String is the place's name, "egress" for one.
func (p Place) String() string {
	return [...]string{"nowhere", "egress", "ingress", "xdp"}[min(p, XDP)]
}

// Hook is one program's place on one device.
type Hook struct {
	// Device is the device's index. With zero, for one that is gone or whose name is, Status and Detach work, wherever the
	// program is attached, and Attach does not.
	Device int
	Place  Place
	// Kind is what to hold the program with.
	Kind Kind
	// Pin is the path of the pin: the link's, or for Clsact the program's. Its directory exists and is in a BPF file
	// system, which allows no dots in names.
	Pin string
	// QdiscPin is where it is noted that the device's clsact qdisc was made here. All hooks on a device share it.
	QdiscPin string
	// Name and Handle tell this filter of Clsact from others; those with this package's priority and another name are
	// left alone. Handle is not zero.
	Name   string
	Handle uint32
}

// State is how a hook is.
type State uint8

// The states.
const (
	// Detached: nothing is pinned.
	Detached State = iota
	// Attached: the program is called for the device's packets.
	Attached
	// Defunct: it is pinned but called for nothing, since its device is gone or somebody detached it by force.
	Defunct
	// Elsewhere: it is attached to another device than asked for, whose name may have been this one's.
	Elsewhere
	// Displaced: somebody put another program in its place.
	Displaced
)

// String is the state's name, "attached" for one.
func (s State) String() string {
	return [...]string{"detached", "attached", "defunct", "elsewhere", "displaced"}[min(s, Displaced)]
}

// Status is how a hook is, and what is there.
type Status struct {
	State State
	// Kind is Best when Detached.
	Kind Kind
	// Device is the index of the device that the program is attached to, zero for none.
	Device int
	// Program is what is held.
	Program ebpf.ProgramID
	// Other is the program that displaced it.
	Other ebpf.ProgramID
}

// Attach makes the program the one that is held. One that is held already is replaced in place: no packet meets none or
// both. What is defunct, elsewhere or displaced is detached first. The program may be closed afterwards.
//
// Errors wrap a *BusyError where somebody else's program is in the way, and ebpf.ErrNotSupported where the kernel has no
// such hook. A failed Attach leaves nothing new behind, and what ran before still runs, but where it had to be detached first and the
// process has no CAP_SYS_ADMIN.
func (h Hook) Attach(p *ebpf.Program) error {
	if h.Device <= 0 {
		return fmt.Errorf("attaching to device %d: no such device", h.Device)
	}
	held, err := h.load()
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
	if st.State == Attached && h.wants(st.Kind) {
		return held.replace(h, p)
	}
	return h.exchange(held, st, p)
}

// exchange detaches what is held otherwise than wanted, and attaches the program. When that fails, what ran runs again, if the process
// may hold on to it (CAP_SYS_ADMIN).
func (h Hook) exchange(held holder, st Status, p *ebpf.Program) error {
	var ran *ebpf.Program
	if st.State == Attached || st.State == Elsewhere {
		var err error
		if ran, err = ebpf.NewProgramFromID(st.Program); err != nil && !errors.Is(err, fs.ErrPermission) { // needs CAP_SYS_ADMIN
			return fmt.Errorf("holding on to the present program: %w", err)
		}
		defer ran.Close() // nil may be closed, too
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

// Status tells how the hook is, by what the kernel says now.
func (h Hook) Status() (Status, error) {
	held, err := h.load()
	if err != nil || held == nil {
		return Status{}, err
	}
	defer held.close()
	return held.status(h)
}

// Detach takes the program off, if it is still there, and removes the pin. It is no error that there is nothing.
func (h Hook) Detach() error {
	held, err := h.load()
	switch {
	case err != nil:
		return err
	case held == nil:
		return h.removeLost()
	}
	defer held.close()
	return held.detach(h)
}

// wants tells whether what is held may stay of its kind.
func (h Hook) wants(k Kind) bool {
	switch {
	case h.Kind != Best:
		return k == h.Kind
	case h.Place == XDP:
		return k == XDPNative
	}
	return k == TCX || k == Clsact
}

func (h Hook) create(p *ebpf.Program) error {
	switch {
	case h.Place == XDP:
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

// holder is what a pin stands for.
type holder interface {
	status(h Hook) (Status, error)
	replace(h Hook, p *ebpf.Program) error
	detach(h Hook) error
	close()
}

// load returns nil where nothing is pinned.
func (h Hook) load() (holder, error) {
	held, err := loadLink(h.Pin)
	if errors.Is(err, errNoLink) {
		held, err = loadFilter(h.Pin)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the pin %s: %w (if it is somebody else's, remove it by hand: `rm -r %s`)", h.Pin, err, h.Pin)
	}
	return held, nil
}
