// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"math"
	"os"
	"runtime"
	"testing"
	"time"
)

func TestCPUTimeIsUserAndSystem(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"12 (ropewalk) S 1 12 12 0 -1 4194560 900 0 0 0 125 75 7 8 20 0 9 0 4242": 2 * time.Second,
		"13 (a) b) (c) R 1 7 12 0 -1 4194560 900 0 0 0 1 2 7 8 20":                30 * time.Millisecond,
		"14 (cut) S 1 12 12 0 -1 4194560 900 0 0 0 125":                           0,
		"15 (x) S 1 12 12 0 -1 4194560 900 0 0 0 y 75 7":                          0,
		"": 0,
	} {
		if got := parseCPUTime(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	before := cpuTime([]int{os.Getpid()})
	for begin := time.Now(); cpuTime([]int{os.Getpid()}) == before; {
		if time.Since(begin) > time.Minute {
			t.Fatalf("a busy process stays at %s", before)
		}
	}
	if got := cpuTime(nil); got != 0 {
		t.Errorf("no CPU time was counted: %s", got)
	}
}

func TestSharesArePercentOfAllCores(t *testing.T) {
	cores := float64(runtime.NumCPU())
	after := cpuTimes{sender: time.Second, tunnel: 5 * time.Second, receiver: 3 * time.Second}
	got := after.since(cpuTimes{tunnel: 3 * time.Second, receiver: 3 * time.Second}).over(2)
	for name, v := range map[string][2]float64{
		"sender": {got.Sender, 50 / cores}, "tunnel": {got.Tunnel, 100 / cores}, "receiver": {got.Receiver, 0},
	} {
		if math.Abs(v[0]-v[1]) > 1e-9 {
			t.Errorf("%s has %v %%, want %v %%", name, v[0], v[1])
		}
	}
}
