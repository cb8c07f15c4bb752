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

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// priority is the priority of all filters of this package. It precedes those that tc assigns by default (from 49152 down),
// and differs from the small numbers that people and other programs choose.
const priority = 71

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
	return h.putFilter(p, f.program)
}

// detach keeps a filter that another program put in this one's place.
func (f *filter) detach(h Hook) error {
	h, there, err := f.locate(h)
	if err != nil {
		return err
	}
	if there != nil && there.Name == h.Name {
		if err := netlink.FilterDel(there); err != nil && !isGone(err) {
			return fmt.Errorf("removing the %s filter: %w", h.AttachPoint, err)
		}
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
	lost, err := h.findFilter()
	if err != nil {
		return err
	}
	if lost != nil && lost.Name == h.Name {
		if err := netlink.FilterDel(lost); err != nil && !isGone(err) {
			return fmt.Errorf("removing the %s filter: %w", h.AttachPoint, err)
		}
	}
	return h.removeQdisc()
}

// findFilter returns the filter with this hook's priority and handle, or nil.
func (h Hook) findFilter() (*netlink.BpfFilter, error) {
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
	if h.AttachPoint == Ingress {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

func (h Hook) createFilter(p *ebpf.Program) error {
	if err := h.ensureQdisc(p); err != nil {
		return err
	}
	there, err := h.findFilter()
	if err == nil && there != nil && there.Name != h.Name {
		id := ebpf.ProgramID(there.Id)
		err = &BusyError{Device: h.Device, AttachPoint: h.AttachPoint, Program: id, Name: there.Name}
	}
	if err == nil {
		err = h.putFilter(p, nil)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("attaching to the %s hook (clsact): %w", h.AttachPoint, err), h.removeQdisc())
	}
	return nil
}

// putFilter pins the program, in place of the pinned one if that is not nil, and then adds or atomically replaces the filter
// (cls_bpf_change). On failure it restores the pin.
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
		return fmt.Errorf("removing the pin %s: %w", pin, err)
	}
	return nil
}

func programID(p *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := p.Info()
	if err != nil {
		return 0, fmt.Errorf("reading the info of a program: %w", err)
	}
	id, ok := info.ID()
	if !ok {
		return 0, errors.New("reading the ID of a program: not supported by the kernel")
	}
	return id, nil
}
