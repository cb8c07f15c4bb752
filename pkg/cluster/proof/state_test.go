// SPDX-License-Identifier: Apache-2.0

package proof

import "testing"

func TestEachEventInEachState(t *testing.T) {
	want := map[State][eventCount]State{ // by heard, proved, unproved, unheard, unheardYet
		Pending:   {Reachable, Proven, Reachable, Lost, Pending},
		Reachable: {Reachable, Proven, Reachable, Lost, Reachable},
		Proven:    {Proven, Proven, Reachable, Lost, Proven},
		Lost:      {Reachable, Proven, Reachable, Lost, Lost},
	}
	for s := Pending; s <= Lost; s++ {
		for e := range eventCount {
			if got := s.after(e); got != want[s][e] {
				t.Errorf("%v after event %d: got %v, want %v", s, e, got, want[s][e])
			}
		}
	}
}
