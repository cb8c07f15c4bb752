// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/spread"
)

func TestRunRefusesFlagsThatCannotBe(t *testing.T) {
	for _, tc := range []struct{ flag, value, want string }{
		{"--spread", "sometimes", "want auto, off or on"},
		{"--spread-ports", "61000", "want two ports, such as 61000-61999"},
		{"--spread-ports", "80-90", "range 80-90 has privileged ports, below 1024, in it"},
		{"--spread-ports", "3000-2000", "range 3000-2000 ends before it begins"},
		{"--lanes", "257", "want 1 to 256"},
		{"--nice", "-21", "want -20 to 19"},
		{"--nice", "20", "want -20 to 19"},
		{"--workers", "65", "want auto, or 0 to 64"},
		{"--workers", "-1", "want auto, or 0 to 64"},
		{"--workers", "some", "want auto, or 0 to 64"},
	} {
		_, _, err := execute(t, newRootCmd(), "", "run", tc.flag, tc.value, "wg0")
		if err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.value) {
			t.Errorf("%s %s: %v", tc.flag, tc.value, err)
		}
	}
}

func TestLanesWithoutTheirPrecedenceAreWarnedOfOnce(t *testing.T) {
	var b bytes.Buffer
	begin := ownThread(slog.New(slog.NewTextHandler(&b, nil)), 0)
	var loops sync.WaitGroup
	for range 4 {
		loops.Go(func() { begin("a\x00b") }) // a name that no thread can have
	}
	loops.Wait()
	if n := strings.Count(b.String(), "\n"); n != 1 || !strings.Contains(b.String(), "level=WARN") {
		t.Errorf("%d lines:\n%s", n, b.String())
	}
}

func TestWorkersAreForCPUsThatNobodyElseNeeds(t *testing.T) {
	for value, want := range map[string][]int{"auto": {0, 0, 1, 2, 4, 4}, "0": {0, 0, 0, 0, 0, 0}, "3": {3, 3, 3, 3, 3, 3}} {
		var f workersFlag
		if err := f.Set(value); err != nil || f.String() != value {
			t.Errorf("%s: %v, %v", value, f.String(), err)
		}
		for i, cpus := range []int{1, 2, 3, 4, 6, 64} {
			if n := f.number(cpus); n != want[i] {
				t.Errorf("%s: %d workers with %d CPUs, want %d", value, n, cpus, want[i])
			}
		}
	}
}

func TestSpreadPortsThatTheKernelGivesAwayAreWarnedOf(t *testing.T) {
	enterSpreadLab(t)
	for _, tt := range []struct {
		local, reserved string
		warn            bool
	}{
		{"32768 60999", "", false},
		{"32768 61010", "", true},
		{"32768 61010", "61000-61009", true},
		{"32768 61010", "61000-61010", false},
	} {
		for name, text := range map[string]string{"ip_local_port_range": tt.local, "ip_local_reserved_ports": tt.reserved + "\n"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(text), 0o600); err != nil {
				t.Skip("needs /proc/sys/net/ipv4: ", err)
			}
		}
		var b bytes.Buffer
		warnOfLocalPorts(slog.New(slog.NewTextHandler(&b, nil)), spread.DefaultPorts)
		if got := strings.Contains(b.String(), "ip_local_reserved_ports="); got != tt.warn {
			t.Errorf("%+v: %q", tt, b.String())
		}
	}
}
