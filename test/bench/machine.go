// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/bench/remote"
)

// machine is the machine on which the figures were measured.
type machine struct {
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
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
	return m
}
