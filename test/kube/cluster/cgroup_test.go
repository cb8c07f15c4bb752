// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// cgroupPrefix begins the names of the cgroups in which the nodes' pods are.
const cgroupPrefix = "ropewalk-cluster-"

// hierarchies returns the mounted cgroup hierarchies: one of version 2, or one for each controller of version 1.
func hierarchies() ([]string, error) {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 2 && (f[2] == "cgroup" || f[2] == "cgroup2") && strings.HasPrefix(f[1], "/sys/fs/cgroup") {
			all = append(all, f[1])
		}
	}
	return all, nil
}

// controllers are those that a kubelet requires.
var controllers = []string{"cpu", "cpuset", "memory", "pids"}

// makeCgroup creates a cgroup with all controllers in all hierarchies.
func makeCgroup(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, h := range all {
		at := filepath.Join(h, name)
		_ = os.WriteFile(filepath.Join(h, "cgroup.subtree_control"), []byte("+cpu +cpuset +io +memory +pids"), 0) // version 2; read back below
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // empty in a new cgroup of version 1
			if text, err := os.ReadFile(filepath.Join(h, file)); err == nil {
				_ = os.WriteFile(filepath.Join(at, file), text, 0)
			}
		}
		enabled, err := os.ReadFile(filepath.Join(at, "cgroup.controllers"))
		if err != nil {
			enabled = []byte(filepath.Base(h))
		}
		for _, c := range strings.FieldsFunc(string(enabled), func(r rune) bool { return strings.ContainsRune(" ,\n", r) }) {
			found[c] = true
		}
	}
	if missing := slices.DeleteFunc(slices.Clone(controllers), func(c string) bool { return found[c] }); len(missing) > 0 {
		return fmt.Errorf("the cgroup controllers %q are not available in %q", missing, all)
	}
	return nil
}

// removeOldCgroups removes the cgroups of tests that were killed. A test that runs has namespaces.
func removeOldCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range all {
		tops, err := filepath.Glob(filepath.Join(h, cgroupPrefix+"*"))
		errs = append(errs, err)
		for _, top := range tops {
			tag, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(top), cgroupPrefix), "-")
			if running, _ := filepath.Glob("/run/netns/" + labPrefix + "-" + tag + "-*"); len(running) == 0 {
				errs = append(errs, removeCgroup(top))
			}
		}
	}
	return errors.Join(errs...)
}

// removeCgroups removes cgroups, with all in them that have no process.
func removeCgroups(pattern string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range all {
		tops, err := filepath.Glob(filepath.Join(h, pattern))
		errs = append(errs, err)
		for _, top := range tops {
			errs = append(errs, removeCgroup(top))
		}
	}
	return errors.Join(errs...)
}

func removeCgroup(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(dirs) {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
