// SPDX-License-Identifier: Apache-2.0

package thread

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Group is the processes with which a process shares its CPU time. The scheduler divides CPU time among groups first, and a nice
// value counts only within one. The zero Group is the whole host.
type Group struct {
	// Cgroup is the cgroup of the CPU controller, empty for none. Then autogroups have no effect on the process.
	Cgroup string
	// Weight is cpu.weight (cgroup v2) or cpu.shares (v1) of Cgroup, and Usual the kernel's default; 0 if unknown.
	Weight, Usual int
	// Autogroup is the process's session as a group of its own (sched(7)), empty if kernel.sched_autogroup_enabled is 0.
	Autogroup string
	// AutogroupNice is the nice value of Autogroup.
	AutogroupNice int
}

// String describes the group.
func (g Group) String() string {
	switch {
	case g.Cgroup != "" && g.Weight > 0:
		return fmt.Sprintf("cgroup %s with CPU weight %d", g.Cgroup, g.Weight)
	case g.Cgroup != "":
		return "cgroup " + g.Cgroup
	case g.Autogroup != "":
		return fmt.Sprintf("%s with nice %d", g.Autogroup, g.AutogroupNice)
	}
	return "the whole host"
}

// ReadGroup returns the group of a process, whose name below /proc may be "self". read returns the text of a file without
// surrounding white space, by its path without the first slash. An error means that the cgroup is not known.
func ReadGroup(read func(path string) (string, error), process string) (g Group, err error) {
	cgroups, err := read("proc/" + process + "/cgroup")
	if err != nil {
		return g, fmt.Errorf("reading the cgroup of process %s: %w", process, err)
	}
	if g = cpuCgroup(read, cgroups); g.Cgroup != "" {
		return g, nil
	}
	if on, err := read("proc/sys/kernel/sched_autogroup_enabled"); err != nil || on != "1" {
		return g, nil
	}
	text, _ := read("proc/" + process + "/autogroup")
	name, nice, ok := strings.Cut(text, " nice ")
	if n, err := strconv.Atoi(nice); ok && err == nil {
		g.Autogroup, g.AutogroupNice = strings.TrimPrefix(name, "/"), n
	}
	return g, nil
}

// cpuCgroup returns the innermost cgroup of /proc/PID/cgroup (cgroups(7)) that the CPU controller knows. The first one has no
// weight, and is no group, except in a container's namespace.
func cpuCgroup(read func(path string) (string, error), cgroups string) Group {
	for line := range strings.Lines(cgroups) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		dir, file, usual := "sys/fs/cgroup", "cpu.weight", 100
		switch {
		case slices.Contains(strings.Split(fields[1], ","), "cpu"):
			dir, file, usual = dir+"/"+fields[1], "cpu.shares", 1024
			if fields[2] == "/" {
				continue
			}
		case fields[1] != "":
			continue
		}
		for at := path.Clean("/" + fields[2]); ; at = path.Dir(at) {
			if text, err := read(path.Join(dir, at, file)); err == nil {
				n, _ := strconv.Atoi(text)
				return Group{Cgroup: at, Weight: n, Usual: usual}
			}
			if at == "/" {
				break
			}
		}
	}
	return Group{}
}
