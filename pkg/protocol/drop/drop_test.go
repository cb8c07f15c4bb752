// SPDX-License-Identifier: Apache-2.0

package drop

import "testing"

func TestReasonsHaveNamesAndHelp(t *testing.T) {
	seen := map[string]bool{}
	for r := range Reason(Count) {
		if r.String() == "" || seen[r.String()] || r.Help() == "" {
			t.Errorf("reason %d: name %q and help %q must be unique and set", r, r, r.Help())
		}
		seen[r.String()] = true
	}
	if r := Reason(Count); r.String() != "unknown" || r.Help() != "" {
		t.Errorf("unknown reason: name %q, help %q", r, r.Help())
	}
}

// TestReasonNumbersAreStable: loaded eBPF programs keep counting by the numbers with which they were built.
func TestReasonNumbersAreStable(t *testing.T) {
	for reason, want := range map[Reason]uint8{TXVnetHeader: 1, RXTooShort: 13, HSQueueFull: 26, HelloUnwanted: 37, HSXDPSourceLimit: 38, HSXDPTotalLimit: 39, RXSocket: 40} {
		if uint8(reason) != want {
			t.Errorf("%v is %d, want %d as in earlier versions", reason, uint8(reason), want)
		}
	}
}

func TestCountersCountByReason(t *testing.T) {
	var c Counters
	c.Add(HSXDPSourceLimit, 2)
	c.Add(HSXDPSourceLimit, 1)
	c.Add(None, 5)
	c.Add(RXReplay, 0)
	c.Add(RXReplay, -1)
	for r := range Reason(Count) {
		want := uint64(0)
		if r == HSXDPSourceLimit {
			want = 3
		}
		if n := c.Get(r); n != want {
			t.Errorf("%v: got %d, want %d", r, n, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { c.Add(RXReplay, 1) }); n != 0 {
		t.Errorf("Add allocates %v times", n)
	}
}
