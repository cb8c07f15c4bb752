// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
)

// The error filter drops forged ICMP errors about packets to peers (bpf/include/toobig.h). The gather programs do that on their devices. The filter does
// it on the other devices, of tunnels and containers. All share one counter.

// FilterStatus is the status of the error filter in the network namespace.
type FilterStatus struct {
	// Devices have it. They are sorted.
	Devices []string `json:"devices"`
	// Dropped is the number of packets that it has dropped.
	Dropped uint64 `json:"dropped"`
}

// filterPin is the name of the directory with the filter's pins, and filterStatePin the name of its state there. No device has these names: the percent
// sign of a device's name is escaped.
const (
	filterPin      = "%filter"
	filterStatePin = "%state"
)

// filters returns where the filter is pinned for each device.
func (p pins) filters() pins { return pins{p.fs, filepath.Join(p.dir, filterPin)} }

// filterState returns where the maps of the filter are pinned.
func (p pins) filterState() programs.Pins {
	maps := p.shared()
	maps.Device = filepath.Join(p.filters().dir, filterStatePin)
	return maps
}

// mayHaveFilter reports whether the filter can read a device's packets. The packets of an ipvlan device in mode L3 pass the device below.
func mayHaveFilter(l netlink.Link) bool { return l.Type() == "wireguard" || CheckDevice(l) == nil }

// syncFilters attaches the filter to the plan's devices. A failure is a warning: it is no reason to do without spread.
func (h *Host) syncFilters(p pins, pl *plan, known attempts) {
	f, l := p.filters(), filterLoader{pins: p.filterState()}
	defer l.close()
	for _, d := range pl.filtered {
		at := f.hook(d.name, d.index, hook.Ingress, h.kind)
		if a, tried := known[d.index]; tried && a.err == nil && runsInFront(at) {
			continue
		}
		err := f.attachFilter(at, d, &l)
		if err != nil && deviceIndex(d.name) != d.index {
			continue // it is gone, as a container's
		}
		h.note(known, d, err)
		if err != nil {
			pl.warn("forged ICMP errors that arrive by %s are not dropped: %v", d.name, err)
		}
	}
}

func (p pins) attachFilter(at hook.Hook, d device, l *filterLoader) error {
	dir := p.device(d.name)
	defer hook.RemoveEmpty(p.fs, dir)
	if err := hook.MakePinDir(p.fs, dir); err != nil {
		return err
	}
	program, err := l.load(d.ethernet)
	if err != nil {
		return err
	}
	return at.Attach(program)
}

// filterLoader loads the filter once for each kind of header.
type filterLoader struct {
	pins   programs.Pins
	loaded map[bool]*ebpf.Program // by whether packets begin with an Ethernet header
}

func (l *filterLoader) load(ethernet bool) (*ebpf.Program, error) {
	if p := l.loaded[ethernet]; p != nil {
		return p, nil
	}
	p, err := programs.LoadErrorFilter(programs.SpreadOptions{L2: ethernet, Pins: l.pins})
	if err != nil {
		return nil, err
	}
	if l.loaded == nil {
		l.loaded = map[bool]*ebpf.Program{}
	}
	l.loaded[ethernet] = p
	return p, nil
}

func (l *filterLoader) close() {
	for _, p := range l.loaded {
		p.Close()
	}
}

// runsInFront reports whether a hook's program is attached, in front of all programs that it can precede.
func runsInFront(h hook.Hook) bool {
	st, err := h.Status()
	inFront, orderErr := h.InFront()
	return err == nil && orderErr == nil && st.State == hook.Attached && inFront
}

// removeFilters removes the filter from all devices but the wanted ones.
func (p pins) removeFilters(wanted []device) error {
	f := p.filters()
	names, err := f.devices()
	errs := []error{err}
	for _, name := range names {
		if !slices.ContainsFunc(wanted, func(d device) bool { return d.name == name }) {
			errs = append(errs, f.detachFrom(name))
		}
	}
	return errors.Join(errs...)
}

// filterStatus returns the status of the filter, and its problems.
func (p pins) filterStatus() (st FilterStatus, problems []string) {
	f := p.filters()
	names, err := f.devices()
	if err != nil {
		problems = append(problems, fmt.Sprintf("the devices with the filter of ICMP errors cannot be listed: %v", err))
	}
	for _, name := range names {
		index := deviceIndex(name)
		if index == 0 {
			continue // a container may end at any time
		}
		if runsInFront(f.hook(name, index, hook.Ingress, hook.Best)) {
			st.Devices = append(st.Devices, name)
		} else {
			problems = append(problems, fmt.Sprintf("the filter of ICMP errors is not attached to %s in front: attach again, or keep `ropewalk spread attach --watch` running", name))
		}
	}
	slices.Sort(st.Devices)
	s, err := programs.OpenState(p.filterState())
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, fmt.Sprintf("the counter of the filter of ICMP errors cannot be read: %v", err))
		}
		return st, problems
	}
	defer s.Close()
	counters, err := s.Counters()
	if err != nil {
		problems = append(problems, err.Error())
	}
	for _, n := range counters {
		st.Dropped += n
	}
	return st, problems
}

// note keeps the result of an attempt to give a device programs.
func (h *Host) note(known attempts, d device, err error) {
	if known != nil {
		known[d.index] = attempt{err, time.Now().Add(cmp.Or(h.refusedPause, defaultRefusedPause))}
	}
}
