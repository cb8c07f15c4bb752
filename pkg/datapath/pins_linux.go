// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// layout is the number of the maps' layout and meaning: any change to what bpf/include/spread_maps.h and lane.h say
// of them raises it.
const layout = 1

const layoutPrefix = "state-"

// layoutDir is where the maps of this layout are pinned.
func layoutDir(pinDir string) string {
	return filepath.Join(pinDir, fmt.Sprint(layoutPrefix, layout))
}

// makePinDir makes the directory for maps; the empty one stays empty.
func makePinDir(pinDir string) (string, error) {
	if pinDir == "" {
		return "", nil
	}
	if err := checkBpffs(pinDir); err != nil {
		return "", fmt.Errorf("pinning eBPF maps in %s: %w", pinDir, err)
	}
	dir := layoutDir(pinDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("making the directory for pinned eBPF maps: %w", err)
	}
	return dir, nil
}

// checkBpffs looks at the part of a path that is there.
func checkBpffs(path string) error {
	var fs unix.Statfs_t
	for {
		err := unix.Statfs(path, &fs)
		if errors.Is(err, unix.ENOENT) && path != filepath.Dir(path) {
			path = filepath.Dir(path)
			continue
		}
		if err == nil && fs.Type != unix.BPF_FS_MAGIC {
			err = errors.New("not a bpffs (mount -t bpf -o mode=700 bpf /sys/fs/bpf)")
		}
		return err
	}
}

// ErrOtherLayout is returned for state that another version of ropewalk pinned.
var ErrOtherLayout = errors.New("it is of another version of ropewalk")

// OpenState opens what a LoadSpread, perhaps of another process, pinned in a directory. That there is none of this
// layout, or not all of it, satisfies errors.Is(err, os.ErrNotExist), and ErrOtherLayout too if there is one of another.
func OpenState(pinDir string) (*State, error) {
	spec, err := loadSpread()
	if err != nil {
		return nil, fmt.Errorf("reading the eBPF program spread: %w", err)
	}
	opened := make(map[string]*ebpf.Map)
	for name, want := range stateSpecs(spec) {
		if opened[name], err = openPinned(filepath.Join(layoutDir(pinDir), name), want); err != nil {
			for _, m := range opened {
				_ = m.Close()
			}
			return nil, errors.Join(err, otherLayout(pinDir))
		}
	}
	s := newState(&spreadMaps{
		Counters: opened[spreadMapCounters], Flows: opened[spreadMapFlows], LocalPorts: opened[spreadMapLocalPorts],
		Peers: opened[spreadMapPeers], Queues: opened[spreadMapQueues], Sources: opened[spreadMapSources],
	})
	return &s, nil
}

// otherLayout returns ErrOtherLayout if there is state, and none of this layout.
func otherLayout(pinDir string) error {
	dirs, _ := filepath.Glob(filepath.Join(pinDir, layoutPrefix+"*"))
	if len(dirs) == 0 || slices.Contains(dirs, layoutDir(pinDir)) {
		return nil
	}
	return ErrOtherLayout
}

// stateSpecs returns the maps that hold state; those of variables belong to one loading of the programs.
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
	return nil, fmt.Errorf("opening the pinned eBPF map %s: %w (if it is somebody else's, remove it by hand: `rm -r %s`)", path, err, path)
}

// RemoveState removes what is pinned in a directory, of every layout, and then the directory if nothing else is in it.
// Attached programs keep what they use. No error if there is nothing.
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
