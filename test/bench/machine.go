// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
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
		m.CPU = cpuModel(info)
	}
	return m
}

// cpuModel finds the first processor's name in /proc/cpuinfo. arm64 prints none there, so the architecture stands in.
func cpuModel(cpuinfo []byte) string {
	for lines := bufio.NewScanner(bytes.NewReader(cpuinfo)); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(key) == "model name" {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return runtime.GOARCH
}
