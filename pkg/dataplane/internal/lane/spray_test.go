// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"slices"
	"testing"
)

// TestLanesOfPeerBoundPortsOfSprayedFlow has six sources, with the ports after their number.
func TestLanesOfPeerBoundPortsOfSprayedFlow(t *testing.T) {
	plain := NewSpread([]uint8{1, 2, 3, 4, 5, 6})
	for _, c := range []struct {
		spray Spray
		want  int
	}{
		{Spray{}, 0},
		{Spray{Ports: 4, Lanes: 1}, 4},
		{Spray{Ports: 4, Lanes: 2, FirstPort: 101, LastPort: 200}, 3},
		{Spray{Ports: 4, Lanes: 4, FirstPort: 101, LastPort: 200}, 2},
		{Spray{Ports: 4, Lanes: 6, FirstPort: 101, LastPort: 200}, 0},
		{Spray{Ports: 4, Lanes: 2, FirstPort: 201, LastPort: 300}, 0},
	} {
		if got := plain.Sprayed(c.spray, func(source int) uint16 { return uint16(100 + source) }).Sprays(); got != c.want {
			t.Errorf("%+v: a flow may be sprayed over %d ports, want %d", c.spray, got, c.want)
		}
	}
}

func TestFlowIsNotSprayedOverBlockedPorts(t *testing.T) {
	all := NewSpread([]uint8{1, 2, 3, 4})
	for blocked, want := range map[int][]uint8{1: {1, 3, 4}, 3: {1, 2, 3}} {
		s := all.Blocked(func(i int) bool { return i == blocked }).Sprayed(Spray{Ports: 4, Lanes: 1}, func(int) uint16 { return 0 })
		if got := s.SourcesWith(1); !slices.Equal(got, want) {
			t.Errorf("sprayed over sources %v, want %v", got, want)
		}
	}
}
