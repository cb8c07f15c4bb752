// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"slices"
	"testing"
)

// fragments4 returns the first and a later fragment of a datagram of the flow. The later one has other bytes where the ports would be.
func fragments4(id uint16) (first, later []byte) {
	first, later = set(udp4(1000, 53), 6, IPv4MoreFragments>>8), set(udp4(7, 8), 7, 1)
	IPv4(first).SetID(id)
	IPv4(later).SetID(id)
	return first, later
}

// fragments6 is fragments4 for IPv6, with further extension headers in front of the fragment header.
func fragments6(id uint16, front ...Protocol) (first, later []byte) {
	types, at := append(slices.Clone(front), Fragment), 40+8*len(front)
	first, later = extended(udp6(1000, 53), types...), extended(udp6(7, 8), types...)
	copy(first[at+2:], []byte{0, 1, 0, 0, byte(id >> 8), byte(id)})
	copy(later[at+2:], []byte{1, 0, 0, 0, byte(id >> 8), byte(id)})
	return first, later
}

func TestFragmentsHaveTheHashOfTheirFlow(t *testing.T) {
	first4, later4 := fragments4(1)
	first6, later6 := fragments6(1)
	hop6, laterHop6 := fragments6(2, HopByHop, Routing)
	options6, laterOptions6 := extended(udp6(1000, 53), Fragment, DestOptions), set(extended(udp6(7, 8), Fragment, DestOptions), 42, 1)
	for name, tt := range map[string]struct{ whole, first, later []byte }{
		"v4":                                 {udp4(1000, 53), first4, later4},
		"v6":                                 {udp6(1000, 53), first6, later6},
		"v6 behind extension headers":        {udp6(1000, 53), hop6, laterHop6},
		"v6 in front of an extension header": {udp6(1000, 53), options6, laterOptions6},
	} {
		var f Fragments
		want := FlowHash(tt.whole)
		for i, ip := range [][]byte{tt.whole, tt.first, tt.later, tt.later, tt.whole} {
			if got := f.FlowHash(ip); got != want {
				t.Errorf("%s: packet %d has hash %#x, want %#x", name, i, got, want)
			}
		}
	}
}

func TestFragmentsOfOtherDatagramsAreHashedWithoutPorts(t *testing.T) {
	first4, later4 := fragments4(1)
	first6, later6 := fragments6(1)
	_, other4 := fragments4(2)
	_, other6 := fragments6(2)
	for name, tt := range map[string]struct {
		first, later []byte
		others       [][]byte
	}{
		"v4": {first4, later4, [][]byte{other4, set(later4, 15, 9), set(later4, 19, 9), set(later4, 9, byte(SCTP)), reverse(later4, 20)}},
		"v6": {first6, later6, [][]byte{other6, set(later6, 8, 9), set(later6, 23, 9), set(later6, 24, 9), set(later6, 39, 9), reverse(later6, 48)}},
	} {
		for i, ip := range tt.others {
			var f Fragments
			f.FlowHash(tt.first)
			if got, want := f.FlowHash(ip), new(Fragments).FlowHash(ip); got != want {
				t.Errorf("%s: fragment %d has hash %#x, want %#x", name, i, got, want)
			}
		}
		if f := new(Fragments); f.FlowHash(tt.later) == f.FlowHash(tt.first) {
			t.Errorf("%s: a later fragment has ports although its first one is not known", name)
		}
	}
}

// TestFragmentsForgetTheOldestDatagram fills the table. As many datagrams as a set has entries are always known.
func TestFragmentsForgetTheOldestDatagram(t *testing.T) {
	var f Fragments
	want := FlowHash(udp4(1000, 53))
	const datagrams = 4 * fragmentSets * fragmentWays
	for id := range uint16(datagrams) {
		first, _ := fragments4(id)
		f.FlowHash(first)
		for older := max(int(id)-fragmentWays+1, 0); older <= int(id); older++ {
			if _, later := fragments4(uint16(older)); f.FlowHash(later) != want {
				t.Fatalf("datagram %d is forgotten after %d more", older, int(id)-older)
			}
		}
	}
	if _, later := fragments4(0); f.FlowHash(later) == want {
		t.Error("the first datagram is still known")
	}
}

func TestFragmentHashAllocatesNothing(t *testing.T) {
	var f Fragments
	first, later := fragments6(1)
	if n := testing.AllocsPerRun(100, func() {
		f.FlowHash(first)
		f.FlowHash(later)
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

func TestFlowMatchesPacketsWithoutPorts(t *testing.T) {
	whole, other, elsewhere := udp4(1000, 53), udp4(1001, 53), set(udp4(1000, 53), 15, 9)
	_, later := fragments4(1)
	for _, tt := range []struct {
		a, b []byte
		want bool
	}{{whole, whole, true}, {whole, later, true}, {later, whole, true}, {later, later, true}, {whole, other, false}, {elsewhere, later, false}} {
		if got := FlowOf(tt.a).Matches(FlowOf(tt.b)); got != tt.want {
			t.Errorf("%v and %v: got %v, want %v", FlowOf(tt.a), FlowOf(tt.b), got, tt.want)
		}
	}
}
