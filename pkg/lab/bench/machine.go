// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
)

// thisMachine describes where the process runs. Fields that the kernel does not report stay empty.
func thisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), Arch: runtime.GOARCH}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.CPU = cpuModel(string(text))
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return m
}

// busyWatch is how long the machine is watched before it is measured.
const busyWatch = 300 * time.Millisecond

// busyPercent returns the CPU utilization while this process sleeps for busyWatch; 0 if it is unknown.
func busyPercent(ctx context.Context, cores int) float64 {
	before, err := testbed.BusyCPU()
	begin := time.Now()
	if err != nil || testbed.Pause(ctx, busyWatch) != nil {
		return 0
	}
	after, err := testbed.BusyCPU()
	if err != nil {
		return 0
	}
	return min(100*(after-before).Seconds()/time.Since(begin).Seconds()/float64(cores), 100)
}

// cpuModel is the first model name in /proc/cpuinfo. arm64 has none: there it is the part number.
func cpuModel(text string) string {
	for _, want := range []string{"model name", "CPU part"} {
		for line := range strings.Lines(text) {
			name, value, ok := strings.Cut(line, ":")
			if ok && strings.TrimSpace(name) == want {
				return strings.Join(strings.Fields(value), " ")
			}
		}
	}
	return ""
}
