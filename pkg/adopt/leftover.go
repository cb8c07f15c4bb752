// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/datapath/hook"
)

// namedNamespaces is where `ip netns` and Docker keep network namespaces.
var namedNamespaces = [...]string{"/run/netns/*", "/run/docker/netns/*"}

// Leftovers returns the directories with pins of other network namespaces that seem to be gone: no process is in them,
// they have none of the usual names, and nothing is attached. They are for people to remove: a namespace may be kept
// where nobody looks, by a descriptor for one.
func (h *Host) Leftovers() ([]string, error) {
	root, err := h.mounted()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	own, err := pinsIn(root)
	if err != nil {
		return nil, err
	}
	if err := hook.CheckOwn(root, own.dir); err != nil {
		return nil, err
	}
	var idle []string
	dirs, _ := filepath.Glob(filepath.Join(filepath.Dir(own.dir), netPrefix+"*"))
	for _, dir := range dirs {
		if dir != own.dir && (pins{root, dir}).idle() {
			idle = append(idle, dir)
		}
	}
	if len(idle) == 0 {
		return nil, nil
	}
	var left []string
	live := liveNamespaces()
	for _, dir := range idle {
		if !live[strings.TrimPrefix(filepath.Base(dir), netPrefix)] {
			left = append(left, dir)
		}
	}
	return left, nil
}

// idle tells whether nothing is attached, as far as can be seen.
func (p pins) idle() bool {
	devices, err := p.devices()
	if err != nil {
		return false
	}
	for _, d := range devices {
		if at, err := p.attachedTo(d); err != nil || len(at) > 0 {
			return false
		}
	}
	return true
}

// liveNamespaces returns the inodes of those that some process's thread is in, or that have a name.
func liveNamespaces() map[string]bool {
	live := map[string]bool{}
	for _, pattern := range append(namedNamespaces[:], "/proc/[0-9]*/task/[0-9]*/ns/net") {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			var st unix.Stat_t
			if unix.Stat(path, &st) == nil {
				live[fmt.Sprint(st.Ino)] = true
			}
		}
	}
	return live
}
