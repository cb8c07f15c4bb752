// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/thread"
	"github.com/ropewalk/ropewalk/pkg/protocol/chachapoly"
	"github.com/ropewalk/ropewalk/test/bench/remote"
)

// machine is the machine on which the figures were measured.
type machine struct {
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	// Cipher is the implementation that ropewalk chose, and Group the scheduler's group of the programs.
	Cipher string `json:"cipher,omitempty"`
	Group  string `json:"group,omitempty"`
}

// String describes the machine in the heading of a table.
func (m machine) String() string {
	text := fmt.Sprintf("Linux %s, %d × %s", m.Kernel, m.Cores, m.CPU)
	if m.Cipher != "" {
		text += ", cipher " + m.Cipher
	}
	if m.Group != "" {
		text += ", CPU time shared by " + m.Group
	}
	return text
}

func thisMachine() machine {
	m := machine{CPU: "unknown", Kernel: "unknown", Cores: runtime.NumCPU()}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.CPU = remote.Processor(string(info))
	}
	m.Cipher, m.Group = chachapoly.Implementation(), schedulingGroup()
	return m
}

// schedulingGroup describes the group of this process, which its children inherit. The number of an autogroup is left out.
func schedulingGroup() string {
	read := func(path string) (string, error) {
		text, err := os.ReadFile("/" + path)
		return strings.TrimSpace(string(text)), err
	}
	switch g, err := thread.ReadGroup(read, "self"); {
	case err != nil:
		return "unknown"
	case g.Autogroup != "":
		return fmt.Sprintf("one autogroup with nice %d", g.AutogroupNice)
	default:
		return g.String()
	}
}
