// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
)

// namespaceGlobs match the network namespaces that `ip netns` and Docker create.
var namespaceGlobs = [...]string{"/run/netns/*", "/run/docker/netns/*"}

// StalePins returns the directories of pins that probably belong to deleted network namespaces.
// No process is in such a namespace, it has none of the usual names, and nothing is attached. An
// operator should remove them. Ropewalk does not, since a namespace can also be kept by a file
// descriptor.
func (h *Host) StalePins() ([]string, error) {
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
	if err := hook.CheckPinDir(root, own.dir); err != nil {
		return nil, err
	}
	var idle []string
	dirs, _ := filepath.Glob(filepath.Join(filepath.Dir(own.dir), hook.NamespacePrefix+"*"))
	for _, dir := range dirs {
		if dir != own.dir && (pins{root, dir}).isIdle() {
			idle = append(idle, dir)
		}
	}
	if len(idle) == 0 {
		return nil, nil
	}
	var left []string
	live := liveNamespaces()
	for _, dir := range idle {
		if !live[strings.TrimPrefix(filepath.Base(dir), hook.NamespacePrefix)] {
			left = append(left, dir)
		}
	}
	return left, nil
}

// isIdle reports whether nothing is attached, as far as this process can see.
func (p pins) isIdle() bool {
	devices, err := p.devices()
	if err != nil {
		return false
	}
	for _, d := range devices {
		if attached, err := p.isAttached(d, 0); err != nil || attached {
			return false
		}
	}
	return true
}

// liveNamespaces returns the inodes of the network namespaces that have a process, a thread or a name.
func liveNamespaces() map[string]bool {
	live := map[string]bool{}
	for _, pattern := range append(namespaceGlobs[:], "/proc/[0-9]*/task/[0-9]*/ns/net") {
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
