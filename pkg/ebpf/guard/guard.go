// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
)

// Guard is the guard of a network namespace. Its methods work in the namespace of the calling
// thread, which must be the namespace where Open was called. They must not be called at the same
// time, nor by two processes.
//
// SetPrefixes and SetStrict take effect at once, for attached programs too. Counts go on from the
// counts of earlier processes.
type Guard struct {
	*programs.Guard
	pins pins
	kind hook.Kind // for tests
}

// Attached is a device to which a program is attached.
type Attached struct {
	Name   string
	Index  int
	Tunnel bool
	Kind   hook.Kind
	// Behind are the programs that run before the guard's. They may end the processing of a
	// packet, which the guard does not see then.
	Behind []string
}

// Open loads the programs, with the maps that an earlier process has pinned, or with new ones:
// without prefixes, and not strict. So prefixes and strict state should be set before Attach
// replaces programs of an earlier version, whose maps may have another layout. An empty bpffs
// stands for hook.BPFFS.
func Open(bpffs string) (*Guard, error) {
	if bpffs == "" {
		var err error
		if bpffs, err = hook.BPFFS(); err != nil {
			return nil, err
		}
	}
	p, err := pinsIn(bpffs)
	if err != nil {
		return nil, err
	}
	if err := hook.MakePinDir(p.fs, p.maps()); err != nil {
		return nil, err
	}
	loaded, err := programs.LoadGuard(p.maps())
	if err != nil {
		hook.RemoveEmpty(p.fs, p.maps())
		return nil, err
	}
	return &Guard{Guard: loaded, pins: p}, nil
}

// Attach attaches the programs to the tunnel and to all devices by which packets may leave the
// node, in front of other programs. It removes the pins of devices that are gone. Call it again
// after each change of links and addresses, and from time to time: another program may have come
// in front. Present programs are replaced without gap, and not at all if they are this Guard's
// and in front.
//
// It returns the devices to which a program is attached, also with an error, which names the
// others.
func (g *Guard) Attach(tunnel string) (attached []Attached, err error) {
	all, err := listDevices()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, d := range all {
		if d.name != tunnel && !d.leavesNode() {
			continue
		}
		a, err := g.attachTo(d, d.name == tunnel)
		switch {
		case errors.Is(err, unix.ENODEV): // it was removed meanwhile
		case err != nil:
			errs = append(errs, fmt.Errorf("attaching the guard to %s: %w", d.name, err))
		default:
			attached = append(attached, a)
		}
	}
	errs = append(errs, g.pins.removeGone(all))
	return attached, errors.Join(errs...)
}

func (g *Guard) attachTo(d device, tunnel bool) (Attached, error) {
	h := g.pins.hook(d.index, g.kind)
	if err := g.putInFront(h, d, tunnel); err != nil {
		return Attached{}, err
	}
	st, err := h.Status()
	if err != nil {
		return Attached{}, err
	}
	a := Attached{Name: d.name, Index: d.index, Tunnel: tunnel, Kind: st.Kind}
	before, _, err := h.Order()
	for _, n := range before {
		a.Behind = append(a.Behind, n.String())
	}
	return a, err
}

// putInFront attaches the program, unless it is attached in front already. If it is attached
// behind another program, a copy comes in front of that before it is detached. A device takes
// each tcx program only once.
func (g *Guard) putInFront(h hook.Hook, d device, tunnel bool) error {
	p := programFor(g.Guard, d, tunnel)
	info, err := p.Info()
	if err != nil {
		return fmt.Errorf("reading the info of an eBPF program: %w", err)
	}
	st, err := h.Status()
	if err != nil {
		return err
	}
	if id, ok := info.ID(); ok && st.State == hook.Attached && st.Program == id {
		if inFront, err := h.InFront(); err != nil || inFront {
			return err
		}
		copied, err := programs.LoadGuard(g.pins.maps())
		if err != nil {
			return err
		}
		defer copied.Close()
		p = programFor(copied, d, tunnel)
	}
	if err := hook.MakePinDir(g.pins.fs, filepath.Dir(h.Pin)); err != nil {
		return err
	}
	return h.Attach(p)
}

func programFor(g *programs.Guard, d device, tunnel bool) *ebpf.Program {
	switch {
	case tunnel:
		return g.Tunnel()
	case d.ethernet:
		return g.Ethernet()
	}
	return g.IP()
}

// Remove detaches the programs from all devices of the network namespace, and removes programs
// and maps. It returns nil if there are none.
func Remove(bpffs string) error {
	if bpffs == "" {
		var err error
		if bpffs, err = hook.MountedBPFFS(); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
	}
	p, err := pinsIn(bpffs)
	if err != nil {
		return err
	}
	if err := errors.Join(hook.CheckPinDir(p.fs, p.dir), p.removeGone(nil)); err != nil {
		return err
	}
	if err := os.RemoveAll(p.dir); err != nil {
		return fmt.Errorf("removing the guard's maps: %w", err)
	}
	hook.RemoveEmpty(p.fs, filepath.Dir(p.dir))
	return nil
}

// pins is the directory with the pins of a network namespace (hook.NamespaceDir): one for the
// maps, and one for each device.
type pins struct{ fs, dir string }

func pinsIn(bpffs string) (pins, error) {
	dir, err := hook.NamespaceDir(bpffs, "guard")
	return pins{bpffs, dir}, err
}

func (p pins) maps() string { return filepath.Join(p.dir, fmt.Sprint("maps-", programs.GuardLayout)) }

const devicePrefix = "device-"

// hook returns the hook of the device with that index. The kernel gives an index of a removed
// device to no other one, unless it is asked to.
func (p pins) hook(index int, kind hook.Kind) hook.Hook {
	dir := filepath.Join(p.dir, fmt.Sprint(devicePrefix, index))
	return hook.Hook{
		Device: index, AttachPoint: hook.Egress, Kind: kind, Name: "ropewalk_guard",
		Pin: filepath.Join(dir, "egress"), QdiscPin: filepath.Join(dir, "clsact"),
	}
}

// removeGone detaches from the devices that are not present, and removes their pins.
func (p pins) removeGone(present []device) error {
	entries, err := os.ReadDir(p.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("listing the guard's pins: %w", err)
	}
	exists := map[int]bool{}
	for _, d := range present {
		exists[d.index] = true
	}
	var errs []error
	for _, e := range entries {
		number, isDevice := strings.CutPrefix(e.Name(), devicePrefix)
		index, err := strconv.Atoi(number)
		if !isDevice || err != nil || exists[index] {
			continue
		}
		h := p.hook(index, hook.Best)
		errs = append(errs, h.Detach())
		hook.RemoveEmpty(p.dir, filepath.Dir(h.Pin))
	}
	return errors.Join(errs...)
}
