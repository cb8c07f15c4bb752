// SPDX-License-Identifier: Apache-2.0

package drop

import "testing"

func TestReasonsHaveNamesAndHelp(t *testing.T) {
	seen := map[string]bool{}
	for r := range Reason(Count) {
		if r.String() == "" || seen[r.String()] || r.Help() == "" {
			t.Errorf("reason %d: %q, %q", r, r, r.Help())
		}
		seen[r.String()] = true
	}
	if r := Reason(Count); r.String() != "unknown" || r.Help() != "" {
		t.Errorf("%q, %q", r, r.Help())
	}
}

// TestNumbersOfReasonsStay: eBPF programs that are loaded go on counting by the numbers they were built with.
func TestNumbersOfReasonsStay(t *testing.T) {
	for reason, want := range map[Reason]uint8{TXVnetHeader: 1, RXTooShort: 13, HSQueueFull: 26, HelloUnwanted: 37, HSSourceBudget: 38, HSTotalBudget: 39, RXSocket: 40} {
		if uint8(reason) != want {
			t.Errorf("%v is %d, was %d", reason, uint8(reason), want)
		}
	}
}

func TestCountersCountByReason(t *testing.T) {
	var c Counters
	c.Add(HSSourceBudget, 2)
	c.Add(HSSourceBudget, 1)
	c.Add(None, 5)
	c.Add(RXReplay, 0)
	c.Add(RXReplay, -1)
	sum := [Count]uint64{RXAuth: 7}
	c.Snapshot(&sum)
	if want := [Count]uint64{HSSourceBudget: 3, RXAuth: 7}; sum != want || c.Get(HSSourceBudget) != 3 {
		t.Errorf("%v, want %v", sum, want)
	}
	if n := testing.AllocsPerRun(100, func() { c.Add(RXReplay, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
