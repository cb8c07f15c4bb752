// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// handles are the handles of this package's filters. Other programs choose small ones, such as 1.
// There are two, so that a filter can be added in front of others before the present one is
// removed. The newest filter of a priority runs first (cls_bpf_change of Linux).
var handles = [...]uint32{0x7277, 0x7278}

// filter is a program attached by a filter on a clsact qdisc.
type filter struct{ program *ebpf.Program }

func loadFilter(pin string) (attachment, error) {
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
		st.State, st.Other = Replaced, other
	} else if h.Device != 0 && at.Device != h.Device {
		st.State = OnOtherDevice
	}
	return st, nil
}

// locate returns the filter, or nil, and the hook on the filter's device. A pinned program, unlike a link, does not record
// its device, which may have been renamed. If the filter is not on the expected device, locate searches all devices.
func (f *filter) locate(h Hook) (Hook, *netlink.BpfFilter, error) {
	there, err := h.findFilter()
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
		if there, err := at.findFilter(); err == nil && there != nil && ebpf.ProgramID(there.Id) == id {
			return at, there, nil
		}
	}
	return h, nil, nil
}

func (f *filter) replace(h Hook, p *ebpf.Program) error {
	there, err := h.findFilter()
	if err != nil {
		return err
	}
	return h.putFilter(p, f.program, place{there.Priority, there.Handle})
}

func (f *filter) moveToFront(h Hook, p *ebpf.Program) error { return h.addFilter(p, f.program) }

func (f *filter) detach(h Hook) error {
	h, _, err := f.locate(h)
	if err != nil {
		return err
	}
	if err := h.deleteFilters(); err != nil {
		return err
	}
	if err := removePin(h.Pin); err != nil {
		return err
	}
	return h.removeQdisc()
}

// removeUnpinnedFilter removes a filter without a pin. A link ends with its pin, a filter does not.
func (h Hook) removeUnpinnedFilter() error {
	if h.AttachPoint == XDP {
		return nil
	}
	if there, err := h.qdisc(); err != nil || there != "clsact" {
		return err
	}
	if err := h.deleteFilters(); err != nil {
		return err
	}
	return h.removeQdisc()
}

// place is the priority and the handle of a filter.
type place struct {
	priority uint16
	handle   uint32
}

// deleteFilters removes the filters with this hook's name, but for those at the places kept.
func (h Hook) deleteFilters(kept ...place) error {
	own, err := h.ownFilters()
	for _, f := range own {
		if slices.Contains(kept, place{f.Priority, f.Handle}) {
			continue
		}
		if err := netlink.FilterDel(f); err != nil && !isGone(err) {
			return fmt.Errorf("removing the %s filter: %w", h.AttachPoint, err)
		}
	}
	return err
}

// findFilter returns the filter with this hook's name, or nil.
func (h Hook) findFilter() (*netlink.BpfFilter, error) {
	own, err := h.ownFilters()
	if len(own) == 0 {
		return nil, err
	}
	return own[0], nil
}

// ownFilters returns the filters with this hook's name in the order in which they run. There is more than one only if a process
// was killed while it replaced one.
func (h Hook) ownFilters() (own []*netlink.BpfFilter, err error) {
	if h.Device == 0 {
		return nil, nil
	}
	filters, err := listFilters(h.Device, h.parent())
	for _, f := range filters {
		if b, ok := f.(*netlink.BpfFilter); ok && b.Name == h.Name {
			own = append(own, b)
		}
	}
	return own, err
}

// freePlace returns a place in front of all filters that a filter can precede, or a BusyError.
func (h Hook) freePlace() (place, error) {
	filters, err := listFilters(h.Device, h.parent())
	if err != nil {
		return place{}, err
	}
	priority := bestPriority(filters)
	taken := map[uint32]*netlink.BpfFilter{}
	for _, f := range filters {
		if b, ok := f.(*netlink.BpfFilter); ok && b.Priority == priority {
			taken[b.Handle] = b
		}
	}
	for _, handle := range handles {
		if taken[handle] == nil {
			return place{priority, handle}, nil
		}
	}
	other := taken[handles[0]]
	return place{}, &BusyError{AttachPoint: h.AttachPoint, Program: ebpf.ProgramID(other.Id), Name: other.Name}
}

func (h Hook) parent() uint32 {
	if h.AttachPoint == Ingress {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

func (h Hook) createFilter(p *ebpf.Program) error {
	if err := h.ensureQdisc(p); err != nil {
		return err
	}
	err := h.addFilter(p, nil)
	if err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("attaching to the %s hook (clsact): %w", h.AttachPoint, err), h.removeQdisc())
}

// addFilter adds the filter in front of all others, and then removes the present one, also if it
// has no pin. A process that is killed before it can pin the filter leaves it so. pinned is as
// for putFilter.
func (h Hook) addFilter(p, pinned *ebpf.Program) error {
	own, err := h.ownFilters()
	if err != nil {
		return err
	}
	if len(own) > 1 { // both handles may be in use
		if err := h.deleteFilters(place{own[0].Priority, own[0].Handle}); err != nil {
			return err
		}
	}
	at, err := h.freePlace()
	if err != nil {
		return err
	}
	if err := h.putFilter(p, pinned, at); err != nil {
		return err
	}
	return h.deleteFilters(at)
}

// putFilter pins the program, in place of the pinned one if that is not nil. It then adds the
// filter at that place, or atomically replaces it (cls_bpf_change). On failure it restores the
// pin.
func (h Hook) putFilter(p, pinned *ebpf.Program, at place) error {
	if err := replacePin(p, h.Pin); err != nil {
		return err
	}
	f := h.filter(at)
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

func (h Hook) filter(at place) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: h.Device, Parent: h.parent(), Handle: at.handle, Priority: at.priority, Protocol: unix.ETH_P_ALL,
		},
		Fd: -1, Name: h.Name, DirectAction: true,
	}
}

// replacePin pins the program, and atomically replaces the pin of another one.
func replacePin(p *ebpf.Program, pin string) error {
	next := pin + "_next"
	if err := removePin(next); err != nil {
		return err
	}
	clone, err := p.Clone() // p belongs to the caller, and Pin would record the path in it
	if err != nil {
		return fmt.Errorf("duplicating the file descriptor of the eBPF program to pin at %s: %w", pin, err)
	}
	defer clone.Close()
	if err := clone.Pin(next); err != nil {
		return fmt.Errorf("pinning the eBPF program at %s: %w", next, err)
	}
	if err := os.Rename(next, pin); err != nil {
		return errors.Join(fmt.Errorf("replacing the pin %s of the eBPF program: %w", pin, err), removePin(next))
	}
	return nil
}

func removePin(pin string) error {
	if err := os.Remove(pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the BPF pin %s: %w", pin, err)
	}
	return nil
}

func programID(p *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := p.Info()
	if err != nil {
		return 0, fmt.Errorf("reading the info of an eBPF program: %w", err)
	}
	id, ok := info.ID()
	if !ok {
		return 0, errors.New("reading the ID of an eBPF program: not supported by the kernel")
	}
	return id, nil
}
