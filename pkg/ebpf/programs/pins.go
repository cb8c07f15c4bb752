// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// layout numbers the maps' layout. Increment it with any change to the layout or meaning of the maps in
// bpf/include/spread_maps.h and lane.h.
const layout = 8

const layoutPrefix = "state-"

// Pins are directories in a BPF file system. They are created if needed. Pinned maps outlive the process, and the next LoadSpread reuses
// them. A version of ropewalk with another layout begins with empty maps beside them, and may remove them (RemoveOtherLayouts).
type Pins struct {
	// Shared has the maps that the programs on all devices of a network namespace share: tunnels, peers, flows and settings. So a peer's answer
	// counts on whichever device it arrives.
	Shared string
	// Device has the counters of one device.
	Device string
}

// dirOf returns the directory of the map with that name.
func (p Pins) dirOf(name string) string {
	if isDeviceMap(name) {
		return layoutDir(p.Device)
	}
	return layoutDir(p.Shared)
}

// open opens or creates the maps of a device, and returns options to load programs with these and the shared maps. After the load, done closes what they
// no longer need.
func (p Pins) open(spec *ebpf.CollectionSpec) (o *ebpf.CollectionOptions, done func(), err error) {
	shared, err := createPinDir(p.Shared)
	if err != nil {
		return nil, nil, err
	}
	// If the limit cannot be raised, it may still be high enough. Otherwise the load fails.
	_ = rlimit.RemoveMemlock()
	own, err := deviceMaps(spec, p.Device)
	if err != nil {
		return nil, nil, err
	}
	return &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: shared}, MapReplacements: own}, func() { closeMaps(own) }, nil
}

// isDeviceMap reports whether each device has a map with that name of its own.
func isDeviceMap(name string) bool { return name == spreadMapCounters || name == spreadMapQueues }

// deviceMaps opens or creates the pinned maps of one device. An empty directory means no pinning, and no maps here.
func deviceMaps(spec *ebpf.CollectionSpec, pinDir string) (all map[string]*ebpf.Map, err error) {
	dir, err := createPinDir(pinDir)
	if err != nil || dir == "" {
		return nil, err
	}
	all = map[string]*ebpf.Map{}
	for name, m := range stateSpecs(spec) {
		if !isDeviceMap(name) {
			continue
		}
		if all[name], err = ebpf.NewMapWithOptions(m, ebpf.MapOptions{PinPath: dir}); err != nil {
			delete(all, name)
			closeMaps(all)
			return nil, fmt.Errorf("opening the pinned eBPF map %s: %w", filepath.Join(dir, name), explainLoadError("spread", err))
		}
	}
	return all, nil
}

func closeMaps(all map[string]*ebpf.Map) {
	for _, m := range all {
		_ = m.Close()
	}
}

// layoutDir returns the directory in which maps of this layout are pinned.
func layoutDir(pinDir string) string {
	return filepath.Join(pinDir, fmt.Sprint(layoutPrefix, layout))
}

// createPinDir creates the directory for the maps of this layout and returns it. An empty pinDir means no pinning.
func createPinDir(pinDir string) (string, error) {
	if pinDir == "" {
		return "", nil
	}
	if err := checkBPFFS(pinDir); err != nil {
		return "", fmt.Errorf("pinning eBPF maps in %s: %w", pinDir, err)
	}
	dir := layoutDir(pinDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("creating the directory for pinned eBPF maps: %w", err)
	}
	return dir, nil
}

// checkBPFFS returns an error unless the existing part of a path is in a BPF file system.
func checkBPFFS(path string) error {
	var fs unix.Statfs_t
	for {
		err := unix.Statfs(path, &fs)
		if errors.Is(err, unix.ENOENT) && path != filepath.Dir(path) {
			path = filepath.Dir(path)
			continue
		}
		if err == nil && fs.Type != unix.BPF_FS_MAGIC {
			err = errors.New("not a BPF file system (mount -t bpf -o mode=700 bpf /sys/fs/bpf)")
		}
		return err
	}
}

// ErrOtherLayout is returned for maps that were pinned with another layout.
var ErrOtherLayout = errors.New("pinned by another version of ropewalk")

// OpenState opens the maps that LoadSpread, perhaps in another process, has pinned. Without Pins.Device the State has no counters. If maps of this
// layout are missing, errors.Is(err, os.ErrNotExist), and also errors.Is(err, ErrOtherLayout) if there are only maps of another layout.
func OpenState(pins Pins) (*State, error) {
	spec, err := loadSpread()
	if err != nil {
		return nil, fmt.Errorf("reading the eBPF program spread: %w", err)
	}
	opened := make(map[string]*ebpf.Map)
	for name, want := range stateSpecs(spec) {
		if pins.Device == "" && isDeviceMap(name) {
			continue
		}
		if opened[name], err = openPinned(filepath.Join(pins.dirOf(name), name), want); err != nil {
			delete(opened, name)
			closeMaps(opened)
			return nil, errors.Join(err, otherLayout(pins.Shared), otherLayout(pins.Device))
		}
	}
	s := newState(&spreadMaps{
		Addresses: opened[spreadMapAddresses], Counters: opened[spreadMapCounters], Flows: opened[spreadMapFlows], LocalPorts: opened[spreadMapLocalPorts],
		Peers: opened[spreadMapPeers], Queues: opened[spreadMapQueues], Settings: opened[spreadMapSettings],
		Sources: opened[spreadMapSources],
	})
	return &s, nil
}

// otherLayout returns ErrOtherLayout if there are pinned maps, but none of this layout.
func otherLayout(pinDir string) error {
	dirs, _ := filepath.Glob(filepath.Join(pinDir, layoutPrefix+"*"))
	if len(dirs) == 0 || slices.Contains(dirs, layoutDir(pinDir)) {
		return nil
	}
	return ErrOtherLayout
}

// RemoveOtherLayouts unpins the maps of other layouts. It is called when the programs are replaced that used them.
func RemoveOtherLayouts(pins Pins) error {
	var errs []error
	for _, pinDir := range []string{pins.Shared, pins.Device} {
		dirs, _ := filepath.Glob(filepath.Join(pinDir, layoutPrefix+"*"))
		for _, dir := range dirs {
			if dir != layoutDir(pinDir) {
				errs = append(errs, os.RemoveAll(dir))
			}
		}
	}
	return errors.Join(errs...)
}

// stateSpecs returns the maps that are pinned. Maps of global variables belong to one load of the programs.
func stateSpecs(spec *ebpf.CollectionSpec) map[string]*ebpf.MapSpec {
	specs := make(map[string]*ebpf.MapSpec)
	for name, m := range spec.Maps {
		if !strings.HasPrefix(name, ".") {
			specs[name] = m
		}
	}
	return specs
}

func openPinned(path string, want *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err == nil {
		if err = want.Compatible(m); err == nil {
			return m, nil
		}
		_ = m.Close()
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("opening the pinned eBPF map %s: %w", path, err)
	}
	return nil, fmt.Errorf("opening the pinned eBPF map %s: %w (if it is not ropewalk's, remove it: `rm -r %s`)", path, err, path)
}

// RemoveState unpins the maps of every layout in a directory, and removes the directory if it is empty then. Attached
// programs keep the maps that they use. It returns nil if there are none.
func RemoveState(pinDir string) error {
	dirs, err := filepath.Glob(filepath.Join(pinDir, layoutPrefix+"*"))
	if err != nil {
		return fmt.Errorf("removing the pinned eBPF maps in %s: %w", pinDir, err)
	}
	for _, dir := range dirs {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("removing pinned eBPF maps: %w", err)
		}
	}
	err = os.Remove(pinDir)
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return fmt.Errorf("removing the directory of pinned eBPF maps: %w", err)
}
