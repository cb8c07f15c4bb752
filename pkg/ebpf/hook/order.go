// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Neighbour is another program at the attach point of a hook.
type Neighbour struct {
	Kind Kind
	// Program is its ID. Zero: a filter that is no eBPF program.
	Program ebpf.ProgramID
	// Name is the name of the filter or else its type. Of a tcx program it is the program's name, empty without CAP_SYS_ADMIN.
	Name string
	// Priority is a filter's.
	Priority uint16
}

// String returns the neighbour as an operator finds it: "program 7 (cil_from_netdev, tcx)", "filter cil_from_netdev (priority 1)".
func (n Neighbour) String() string {
	switch {
	case n.Kind == TCX && n.Name == "":
		return fmt.Sprintf("program %d (tcx)", n.Program)
	case n.Kind == TCX:
		return fmt.Sprintf("program %d (%s, tcx)", n.Program, n.Name)
	}
	return fmt.Sprintf("filter %s (priority %d)", n.Name, n.Priority)
}

// Order returns the programs that run before and after the hook's program, in order, as the kernel lists them. A program that
// runs before may end the processing, so that the hook's program does not see the packet. Both are empty if the hook's program
// is not attached to Device, and at XDP, where it is the only one.
func (h Hook) Order() (before, after []Neighbour, err error) {
	st, err := h.Status()
	if err != nil || st.State != Attached {
		return nil, nil, err
	}
	all, own, err := h.list(st.Program)
	if err != nil || own < 0 {
		return nil, nil, err
	}
	return all[:own], all[own+1:], nil
}

// InFront reports whether the hook's program runs before all others that it can precede. If it does not, the next Attach moves it.
// It cannot precede tcx programs with Clsact, and no filter of the highest priority that has another type or protocol. InFront
// returns true if the program is not attached.
func (h Hook) InFront() (bool, error) {
	st, err := h.Status()
	if err != nil || st.State != Attached {
		return true, err
	}
	before, _, err := h.Order()
	if err != nil || st.Kind == TCX {
		return len(before) == 0, err
	}
	filters, err := listFilters(h.Device, h.parent())
	best := bestPriority(filters)
	return !slices.ContainsFunc(before, func(n Neighbour) bool { return n.Kind == Clsact && n.Priority >= best }), err
}

// bestPriority returns the highest priority at which this package can add a filter. All filters
// of one priority have the same type and protocol (tcf_chain_tp_find of Linux).
func bestPriority(filters []netlink.Filter) uint16 {
	for priority := uint16(1); ; priority++ {
		other := func(f netlink.Filter) bool {
			return f.Attrs().Priority == priority && (f.Type() != "bpf" || f.Attrs().Protocol != unix.ETH_P_ALL)
		}
		if !slices.ContainsFunc(filters, other) {
			return priority
		}
	}
}

// list returns all programs at the attach point in the order in which they run, and the place of
// one of them, or -1. Programs at tcx precede the filters (sch_handle_egress and
// sch_handle_ingress of Linux).
func (h Hook) list(own ebpf.ProgramID) (all []Neighbour, at int, err error) {
	if h.AttachPoint == XDP || h.Device == 0 {
		return nil, -1, nil
	}
	if all, err = h.tcxPrograms(); err != nil {
		return nil, -1, err
	}
	filters, err := h.filters()
	all = append(all, filters...)
	return all, slices.IndexFunc(all, func(n Neighbour) bool { return n.Program == own }), err
}

// HasTCX reports whether the kernel has tcx (Linux 6.6) and the process may use it.
func HasTCX() bool {
	_, err := link.QueryPrograms(link.QueryOptions{Target: loopback, Attach: ebpf.AttachTCXIngress})
	return err == nil
}

// loopback is the index of lo in each network namespace (net/core/dev.c).
const loopback = 1

func (h Hook) tcxPrograms() (list []Neighbour, err error) {
	result, err := link.QueryPrograms(link.QueryOptions{Target: h.Device, Attach: h.tcxType()})
	if errors.Is(err, ebpf.ErrNotSupported) || isGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the tcx programs of device index %d: %w", h.Device, err)
	}
	for _, p := range result.Programs {
		list = append(list, Neighbour{Kind: TCX, Program: p.ID, Name: ProgramName(p.ID)})
	}
	return list, nil
}

// filters returns the filters of chain 0. Others run only if one of these jumps to them.
func (h Hook) filters() (list []Neighbour, err error) {
	filters, err := listFilters(h.Device, h.parent())
	for _, f := range filters {
		a := f.Attrs()
		if a.Chain != nil && *a.Chain != 0 {
			continue
		}
		n := Neighbour{Kind: Clsact, Name: f.Type(), Priority: a.Priority}
		if b, ok := f.(*netlink.BpfFilter); ok {
			n.Program, n.Name = ebpf.ProgramID(b.Id), b.Name
		}
		list = append(list, n)
	}
	return list, err
}
