// SPDX-License-Identifier: Apache-2.0

package lanetest

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// ForEachObserved runs a test with and without counting of flows.
func ForEachObserved(t *testing.T, test func(t *testing.T, observe func(*Rig))) {
	t.Helper()
	t.Run("unobserved", func(t *testing.T) { test(t, func(*Rig) {}) })
	t.Run("observed", func(t *testing.T) { test(t, func(r *Rig) { _, _ = r.Flows.Flows() }) })
}

// EachLoad lets carry carry trains of some loads, and turn end an interval. It fails the test if yields is not right then.
func EachLoad(t *testing.T, ends [2]flow.Ends, carry func(train []byte), turn func(), yields *bool) {
	t.Helper()
	tcp := map[flow.Ends]*flow.Flow{ends[0]: {Ends: ends[0]}, ends[1]: {Ends: ends[1]}}
	streams := func(n int) func(flow.Ends) []byte {
		return func(e flow.Ends) []byte { return tcp[e].Train(n, 1000) }
	}
	datagrams := func(n int) func(flow.Ends) []byte {
		return func(e flow.Ends) []byte { return e.UDPTrain(1000, make([]byte, n*1000)) }
	}
	for _, load := range []struct {
		name   string
		train  func(flow.Ends) []byte
		trains int
		yields bool
	}{
		{"long trains of TCP", streams(40), 10, false},
		{"single datagrams", datagrams(1), 100, true},
		{"too little to evaluate", streams(1), 10, true},
		{"single packets of TCP", streams(1), 100, false},
		{"short trains of datagrams", datagrams(4), 30, true},
		{"long trains of datagrams", datagrams(40), 10, false},
		{"few datagrams", datagrams(1), 10, false},
	} {
		for _, e := range ends {
			for range load.trains {
				carry(load.train(e))
			}
			if turn(); *yields != load.yields {
				t.Errorf("%s: the loop yields: %v, want %v", load.name, *yields, load.yields)
			}
		}
	}
}

// LeastAllocs is testing.AllocsPerRun, the least of up to three: it counts the allocations of all goroutines, and workers or a test before may
// be late.
func LeastAllocs(runs int, f func()) float64 {
	n := testing.AllocsPerRun(runs, f)
	for range 2 {
		if n != 0 {
			n = min(n, testing.AllocsPerRun(runs, f))
		}
	}
	return n
}
