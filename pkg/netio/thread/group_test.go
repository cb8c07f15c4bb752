// SPDX-License-Identifier: Apache-2.0

package thread

import (
	"io/fs"
	"testing"
)

func TestGroupFollowsCgroupThenAutogroup(t *testing.T) {
	const on, v2 = "proc/sys/kernel/sched_autogroup_enabled", "proc/self/cgroup"
	for name, c := range map[string]struct {
		files map[string]string
		want  Group
		text  string
	}{
		"nothing":   {map[string]string{v2: "0::/"}, Group{}, "the whole host"},
		"autogroup": {map[string]string{v2: "0::/", on: "1", "proc/self/autogroup": "/autogroup-70 nice -5"}, Group{Autogroup: "autogroup-70", AutogroupNice: -5}, "autogroup-70 with nice -5"},
		"off":       {map[string]string{v2: "0::/", on: "0", "proc/self/autogroup": "/autogroup-70 nice 0"}, Group{}, "the whole host"},
		"systemd": {
			map[string]string{v2: "0::/system.slice/ropewalk@wg0.service", on: "1", "sys/fs/cgroup/system.slice/ropewalk@wg0.service/cpu.weight": "300"},
			Group{Cgroup: "/system.slice/ropewalk@wg0.service", Weight: 300, Usual: 100},
			"cgroup /system.slice/ropewalk@wg0.service with CPU weight 300",
		},
		"controller above": {
			map[string]string{v2: "0::/system.slice/a.service", "sys/fs/cgroup/system.slice/cpu.weight": "100"},
			Group{Cgroup: "/system.slice", Weight: 100, Usual: 100},
			"cgroup /system.slice with CPU weight 100",
		},
		"container": {map[string]string{v2: "0::/", "sys/fs/cgroup/cpu.weight": "39"}, Group{Cgroup: "/", Weight: 39, Usual: 100}, "cgroup / with CPU weight 39"},
		"v1": {
			map[string]string{v2: "9:name=systemd:/x\n4:cpu,cpuacct:/pod\n0::/", "sys/fs/cgroup/cpu,cpuacct/pod/cpu.shares": "2048"},
			Group{Cgroup: "/pod", Weight: 2048, Usual: 1024},
			"cgroup /pod with CPU weight 2048",
		},
		"v1, first cgroup": {map[string]string{v2: "1:cpu:/\n0::/", "sys/fs/cgroup/cpu/cpu.shares": "1024", on: "0"}, Group{}, "the whole host"},
		"malformed":        {map[string]string{v2: "x\n1:2\n::\n", on: "1", "proc/self/autogroup": "nice"}, Group{}, "the whole host"},
	} {
		read := func(path string) (string, error) {
			if text, ok := c.files[path]; ok {
				return text, nil
			}
			return "", fs.ErrNotExist
		}
		got, err := ReadGroup(read, "self")
		if err != nil || got != c.want || got.String() != c.text {
			t.Errorf("%s: got %+v, %q, error %v, want %+v, %q", name, got, got, err, c.want, c.text)
		}
	}
	if _, err := ReadGroup(func(string) (string, error) { return "", fs.ErrNotExist }, "1"); err == nil {
		t.Error("no error for a process that does not exist")
	}
}
