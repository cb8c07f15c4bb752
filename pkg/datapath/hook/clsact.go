// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/hostnet"
)

// priority is that of all filters made here: before what tc chooses for those that name none (from 49152 down), and not
// one of the small numbers that people and other programs choose.
const priority = 71

// filter is a program held by a filter on a clsact qdisc.
type filter struct{ program *ebpf.Program }

func loadFilter(pin string) (holder, error) {
	p, err := ebpf.LoadPinnedProgram(pin, nil)
	if err != nil {
		return nil, err
	}
	return &filter{p}, nil
}

func (f *filter) close() { f.program.Close() }

func (f *filter) status(h Hook) (Status, error) {
	id, err := programID(f.program)
	if err != nil {
		return Status{}, err
	}
	st := Status{State: Defunct, Kind: Clsact, Program: id}
	at, there, err := f.locate(h)
	if err != nil || there == nil {
		return st, err
	}
	st.State, st.Device = Attached, at.Device
	if other := ebpf.ProgramID(there.Id); other != id {
		st.State, st.Other = Displaced, other
	} else if h.Device != 0 && at.Device != h.Device {
		st.State = Elsewhere
	}
	return st, nil
}

// locate returns the filter, or nil, and the hook with the device that has it. A pinned program, unlike a link, does not
// know its device, whose name may be another by now: where it is not on the one expected, all are looked at.
func (f *filter) locate(h Hook) (Hook, *netlink.BpfFilter, error) {
	there, err := h.find()
	if err != nil || there != nil {
		return h, there, err
	}
	id, err := programID(f.program)
	if err != nil {
		return h, nil, err
	}
	links, err := hostnet.Links()
	if err != nil {
		return h, nil, err
	}
	for _, l := range links {
		at := h
		at.Device = l.Index
		if there, err := at.find(); err == nil && there != nil && ebpf.ProgramID(there.Id) == id {
			return at, there, nil
		}
	}
	return h, nil, nil
}

func (f *filter) replace(h Hook, p *ebpf.Program) error {
	return h.putFilter(p, f.program)
}

// detach leaves alone what somebody put in the filter's place.
func (f *filter) detach(h Hook) error {
	h, there, err := f.locate(h)
	if err != nil {
		return err
	}
	if there != nil && there.Name == h.Name {
		if err := netlink.FilterDel(there); err != nil && !gone(err) {
			return fmt.Errorf("removing the %s filter: %w", h.Place, err)
		}
	}
	if err := removePin(h.Pin); err != nil {
		return err
	}
	return h.removeQdisc()
}

// removeLost removes a filter whose pin somebody removed: unlike a link, it does not go with it.
func (h Hook) removeLost() error {
	if h.Place == XDP {
		return nil
	}
	if there, err := h.qdisc(); err != nil || there != "clsact" {
		return err
	}
	lost, err := h.find()
	if err != nil {
		return err
	}
	if lost != nil && lost.Name == h.Name {
		if err := netlink.FilterDel(lost); err != nil && !gone(err) {
			return fmt.Errorf("removing the %s filter: %w", h.Place, err)
		}
	}
	return h.removeQdisc()
}

// find returns the filter that has this one's number, or nil.
func (h Hook) find() (*netlink.BpfFilter, error) {
	if h.Device == 0 {
		return nil, nil
	}
	filters, err := listFilters(h.Device, h.parent())
	for _, f := range filters {
		if b, ok := f.(*netlink.BpfFilter); ok && b.Priority == priority && b.Handle == h.Handle {
			return b, nil
		}
	}
	return nil, err
}

func (h Hook) parent() uint32 {
	if h.Place == Ingress {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

func (h Hook) createFilter(p *ebpf.Program) error {
	if err := h.ensureQdisc(p); err != nil {
		return err
	}
	there, err := h.find()
	if err == nil && there != nil && there.Name != h.Name {
		id := ebpf.ProgramID(there.Id)
		err = &BusyError{Device: h.Device, Place: h.Place, Program: id, Name: there.Name}
	}
	if err == nil {
		err = h.putFilter(p, nil)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("attaching to the %s hook (clsact): %w", h.Place, err), h.removeQdisc())
	}
	return nil
}

// putFilter pins the program in place of the one that is pinned, or of nil, and then adds the filter or replaces it,
// which the kernel does at once (cls_bpf_change). When that fails, the pin is as it was.
func (h Hook) putFilter(p, pinned *ebpf.Program) error {
	if err := replacePin(p, h.Pin); err != nil {
		return err
	}
	f := h.filter()
	f.Fd = p.FD()
	err := netlink.FilterReplace(f)
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.ENOENT) {
		err = fmt.Errorf("%w (%w): needs a kernel with CONFIG_NET_CLS_BPF (module cls_bpf)", ebpf.ErrNotSupported, err)
	}
	err = fmt.Errorf("adding a filter: %w", err)
	if pinned == nil {
		return errors.Join(err, removePin(h.Pin))
	}
	return errors.Join(err, replacePin(pinned, h.Pin))
}

func (h Hook) filter() *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: h.Device, Parent: h.parent(), Handle: h.Handle, Priority: priority, Protocol: unix.ETH_P_ALL,
		},
		Fd: -1, Name: h.Name, DirectAction: true,
	}
}

// replacePin puts the program's pin in the place of another, if there is one.
func replacePin(p *ebpf.Program, pin string) error {
	next := pin + "_next"
	if err := removePin(next); err != nil {
		return err
	}
	clone, err := p.Clone() // the program remembers where it is pinned, and belongs to the caller
	if err != nil {
		return fmt.Errorf("pinning a program: %w", err)
	}
	defer clone.Close()
	if err := clone.Pin(next); err != nil {
		return fmt.Errorf("pinning a program at %s: %w", next, err)
	}
	if err := os.Rename(next, pin); err != nil {
		return errors.Join(fmt.Errorf("pinning a program: %w", err), removePin(next))
	}
	return nil
}

func removePin(pin string) error {
	if err := os.Remove(pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the pin %s: %w", pin, err)
	}
	return nil
}

func programID(p *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := p.Info()
	if err != nil {
		return 0, fmt.Errorf("reading a program: %w", err)
	}
	id, ok := info.ID()
	if !ok {
		return 0, errors.New("reading a program: the kernel does not tell its number")
	}
	return id, nil
}
