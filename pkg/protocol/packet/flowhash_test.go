// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"math/bits"
	"slices"
	"testing"
)

// reverse returns the packet with source and destination exchanged, as a reply has them.
func reverse(ip []byte, l4 int) []byte {
	r := slices.Clone(ip)
	at, size := 12, 4
	if ip[0]>>4 == 6 {
		at, size = 8, 16
	}
	copy(r[at:], ip[at+size:at+2*size])
	copy(r[at+size:], ip[at:at+size])
	copy(r[l4:], ip[l4+2:l4+4])
	copy(r[l4+2:], ip[l4:l4+2])
	return r
}

func TestFlowHashIsTheSameInBothDirections(t *testing.T) {
	for _, tt := range []struct {
		ip []byte
		l4 int
	}{
		{udp4(1000, 53), 20},
		{udp6(1000, 53), 40},
		{extended(udp6(1000, 53), HopByHop), 48},
		{set(udp4(1000, 53), 9, byte(TCP)), 20},
		{set(udp4(1000, 53), 9, byte(SCTP)), 20},
	} {
		if FlowHash(tt.ip) != FlowHash(reverse(tt.ip, tt.l4)) {
			t.Errorf("packet % x: got different hashes for the two directions", tt.ip)
		}
	}
}

func TestFlowHashDistinguishesFlows(t *testing.T) {
	v4, v6 := udp4(1000, 53), udp6(1000, 53)
	for name, other := range map[string][]byte{
		"source port":      udp4(1001, 53),
		"destination port": udp4(1000, 54),
		"protocol":         set(v4, 9, byte(TCP)),
		"source":           set(v4, 15, 9),
		"destination":      set(v4, 19, 9),
		"version":          v6,
	} {
		if FlowHash(v4) == FlowHash(other) {
			t.Errorf("%s is not part of the hash", name)
		}
	}
	for _, at := range []int{8, 15, 16, 23, 24, 31, 32, 39, 40, 43} {
		if FlowHash(v6) == FlowHash(set(v6, at, 0x77)) {
			t.Errorf("v6 byte %d is not part of the hash", at)
		}
	}
}

func TestFlowHashIgnoresFieldsThatVaryWithinFlow(t *testing.T) {
	v4, v6 := udp4(1000, 53), udp6(1000, 53)
	for name, pair := range map[string][2][]byte{
		"ID":                {v4, set(v4, 4, 1, 2)},
		"TOS":               {v4, set(v4, 1, 3)},
		"TTL":               {v4, set(v4, 8, 3)},
		"payload":           {v4, set(v4, 28, 1, 2, 3, 4)},
		"flow label":        {v6, set(v6, 1, 1, 2, 3)},
		"extension headers": {v6, extended(v6, HopByHop, DestOptions)},
		"padding":           {v4, append(slices.Clone(v4), 0)},
	} {
		if FlowHash(pair[0]) != FlowHash(pair[1]) {
			t.Errorf("%s changes the hash", name)
		}
	}
}

func TestFlowHashSeparatesNeighbouringFlows(t *testing.T) {
	const flows, lanes = 4096, 16
	var low, high [lanes]int
	for i := range flows {
		h := FlowHash(udp4(uint16(32768+i), 5201))
		low[h%lanes]++
		high[h>>28]++
	}
	for i := range lanes {
		if min(low[i], high[i]) < flows/lanes*3/4 || max(low[i], high[i]) > flows/lanes*5/4 {
			t.Errorf("lane %d has %d (low bits) and %d (high bits) of %d flows", i, low[i], high[i], flows)
		}
	}
}

func TestFlowHashChangesHalfItsBitsWithEachInputBit(t *testing.T) {
	base := udp4(1000, 53)
	want := FlowHash(base)
	total, n := 0, 0
	for at := 12; at < 24; at++ {
		for bit := range 8 {
			other := set(base, at, base[at]^1<<bit)
			total += bits.OnesCount32(want ^ FlowHash(other))
			n++
		}
	}
	if mean := float64(total) / float64(n); mean < 14 || mean > 18 {
		t.Errorf("got %.1f of 32 bits change on average, want about 16", mean)
	}
}

// TestFlowHashIsStable checks known values. The eBPF implementation (bpf/include/flow_hash.h) must compute the same.
func TestFlowHashIsStable(t *testing.T) {
	for name, tt := range map[string]struct {
		ip   []byte
		want uint32
	}{
		"v4": {udp4(1000, 53), knownHash4},
		"v6": {udp6(1000, 53), knownHash6},
	} {
		if got := FlowHash(tt.ip); got != tt.want {
			t.Errorf("%s: got %#x, want %#x", name, got, tt.want)
		}
	}
}

const (
	knownHash4 = 0x01839983
	knownHash6 = 0xa64ea732
)

func TestHeaderAccessAllocatesNothing(t *testing.T) {
	ip := udp6(1000, 53)
	if n := testing.AllocsPerRun(100, func() {
		Length(ip)
		Source(ip)
		Destination(ip)
		FlowHash(ip)
		Sum(ip, PseudoSum(ip, UDP, 12))
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
