// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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

// syncFilters removes the filter from all devices that are not in the plan, and attaches it to
// the plan's. Without tcx (Linux 6.6) only the tunnel's own device gets it: a qdisc on each
// container's device would be in other programs' way. A failure is a warning: it is no reason to
// do without spread.
func (h *Host) syncFilters(p pins, pl *plan, known attempts) {
	if err := p.removeFilters(pl.filtered); err != nil {
		pl.warn("the filter of ICMP errors stays where it is no longer needed: %v", err)
	}
	tcx := h.kind != hook.Clsact && hook.HasTCX()
	f, l := p.filters(), filterLoader{pins: p.filterState()}
	defer l.close()
	var warned []unix.Errno
	for _, d := range pl.filtered {
		own := pl.found != nil && d.name == pl.found.Name
		if known[d.index].refused() || !tcx && !own {
			continue
		}
		at := f.hook(d.name, d.index, hook.Ingress, h.kind)
		st, err := at.Status()
		if a, tried := known[d.index]; tried && a.err == nil && err == nil && st.State == hook.Attached {
			continue
		}
		err = f.attachFilter(at, d, &l)
		if err != nil && deviceIndex(d.name) != d.index {
			continue // it is gone, as a container's
		}
		h.note(known, d, err)
		kind, _ := errors.AsType[unix.Errno](err)
		if err != nil && !slices.Contains(warned, kind) {
			warned = append(warned, kind)
			pl.warn("forged ICMP errors that arrive by devices such as %s are not dropped: %v", d.name, err)
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

// filterLoader loads the filter at most once for each kind of header. Devices share a program only with tcx: clsact finds a device by its program.
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

// removeFilters removes the filter from all devices but the wanted ones.
func (p pins) removeFilters(wanted []device) error {
	f := p.filters()
	names, err := f.devices()
	errs := []error{err}
	for _, name := range names {
		if !slices.ContainsFunc(wanted, func(d device) bool { return d.name == name }) {
			errs = append(errs, f.hook(name, deviceIndex(name), hook.Ingress, hook.Best).Detach())
			hook.RemoveEmpty(f.fs, f.device(name))
		}
	}
	return errors.Join(errs...)
}

// filterDevices returns the devices with the filter, sorted, and problems. It takes some system calls for each device.
func (p pins) filterDevices() (devices, problems []string) {
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
		if at, err := f.hook(name, index, hook.Ingress, hook.Best).Status(); err == nil && at.State == hook.Attached {
			devices = append(devices, name)
		} else {
			problems = append(problems, fmt.Sprintf("the filter of ICMP errors is not attached to %s: attach again, or keep `ropewalk spread attach --watch` running", name))
		}
	}
	slices.Sort(devices)
	return devices, problems
}

// filterDropped returns the number of packets that the filter has dropped, and problems.
func (p pins) filterDropped() (dropped uint64, problems []string) {
	s, err := programs.OpenState(p.filterState())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, []string{fmt.Sprintf("the counter of the filter of ICMP errors cannot be read: %v", err)}
	}
	defer s.Close()
	counters, err := s.Counters()
	if err != nil {
		problems = []string{err.Error()}
	}
	return counters[programs.EventFragmentationNeeded] + counters[programs.EventTooManyTags], problems
}
