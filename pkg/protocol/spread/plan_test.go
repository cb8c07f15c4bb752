// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

var ( //nolint:gochecknoglobals // constants
	planFrom  = netip.MustParseAddr("198.51.100.1")
	planTo    = netip.MustParseAddrPort("203.0.113.1:51820")
	planFrom6 = netip.MustParseAddr("2001:db8::1")
	planTo6   = netip.MustParseAddrPort("[2001:db8::2]:51820")
)

// queuesOf plans and returns the queue of each port; the ports are checked to be distinct and candidates.
func queuesOf(t *testing.T, r *RSS, from netip.Addr, to netip.AddrPort, candidates Ports, lanes int) []int {
	t.Helper()
	ports, err := Plan(r, from, to, candidates, lanes)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := Plan(r, from, to, candidates, lanes); !slices.Equal(ports, again) {
		t.Fatalf("planned %v, then %v", ports, again)
	}
	seen := map[uint16]bool{}
	queues := make([]int, len(ports))
	for i, p := range ports {
		if seen[p] || !candidates.Contains(p) {
			t.Fatalf("port %d is there twice or no candidate: %v", p, ports)
		}
		seen[p] = true
		if queues[i], err = r.Queue(netip.AddrPortFrom(from, p), to); err != nil {
			t.Fatal(err)
		}
	}
	return queues
}

// count returns how often each queue is there.
func count(queues []int) map[int]int {
	n := map[int]int{}
	for _, q := range queues {
		n[q]++
	}
	return n
}

func TestPlannedPortsHitQueuesInTurn(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		r := microsoftRSS(1 + rng.IntN(64))
		for i := range r.Key {
			r.Key[i] = byte(rng.Uint32())
		}
		r.Transform = Transform(rng.IntN(int(OtherTransform)))
		from, to := planFrom, planTo
		if rng.IntN(2) == 0 {
			from, to = planFrom6, planTo6
		}
		candidates := Ports{61000, 65535}
		// The hash is linear: a key may be such that its last bits are not independent, and half the table out of reach.
		all := reachable(r, from, to, candidates)
		for _, lanes := range []int{0, len(all), MaxPorts} {
			queues := queuesOf(t, r, from, to, candidates, lanes)
			if len(queues) < len(all) {
				t.Fatalf("%d queues, %d lanes: got %d ports, want at least %d", len(all), lanes, len(queues), len(all))
			}
			for i, q := range queues {
				if q != all[i%len(all)] {
					t.Fatalf("%d queues, %d lanes: port %d arrives on queue %d", len(all), lanes, i, q)
				}
			}
		}
	}
}

// reachable returns the queues on which packets from candidates arrive, in order.
func reachable(r *RSS, from netip.Addr, to netip.AddrPort, candidates Ports) []int {
	var queues []int
	for i := range candidates.Len() {
		q, _ := r.Queue(netip.AddrPortFrom(from, candidates.First+uint16(i)), to)
		queues = append(queues, q)
	}
	slices.Sort(queues)
	return slices.Compact(queues)
}

func TestPlanHasOnePortPerQueue(t *testing.T) {
	for _, c := range []struct{ queues, lanes, want int }{
		{16, 0, 16},
		{16, -1, 16},
		{16, 16, 16},
		{16, 20, 16},
		{16, 40, 32},
		{16, 64, 64},
		{16, 1000, 64},
		{16, 5, 5},
		{1, 0, 1},
		{1, 8, 8},
		{48, 0, 48},
		{100, 0, 64},
		{100, 10, 10},
		{3, 64, 63},
	} {
		queues := queuesOf(t, microsoftRSS(c.queues), planFrom, planTo, Ports{61000, 65535}, c.lanes)
		if len(queues) != c.want {
			t.Errorf("%d queues, %d lanes: got %d ports, want %d", c.queues, c.lanes, len(queues), c.want)
		}
	}
}

func TestSendersStartOnDifferentQueues(t *testing.T) {
	r := microsoftRSS(16)
	starts := map[int]bool{}
	from := planFrom
	for range 50 {
		from = from.Next()
		queues := queuesOf(t, r, from, planTo, DefaultPorts, 2)
		if len(queues) != 2 || queues[1] != (queues[0]+1)%16 {
			t.Fatalf("two lanes on queues %v", queues)
		}
		starts[queues[0]] = true
	}
	if len(starts) < 12 {
		t.Errorf("50 senders start on %d of 16 queues", len(starts))
	}
}

func TestPlanFollowsTableWeights(t *testing.T) {
	// ethtool -X DEV weight 3 1
	table := make([]uint32, 128)
	for i := 96; i < 128; i++ {
		table[i] = 5
	}
	r := &RSS{Key: MicrosoftKey(), Indirection: table}
	for lanes, want := range map[int]int{0: 4, 4: 4, 7: 4, 8: 8, 64: 64} {
		n := count(queuesOf(t, r, planFrom, planTo, DefaultPorts, lanes))
		if n[0] != want*3/4 || n[5] != want/4 {
			t.Errorf("%d lanes: %v", lanes, n)
		}
	}
}

func TestUnreachableQueuesAreLeftOut(t *testing.T) {
	r := microsoftRSS(16)
	for _, candidates := range []int{1, 2, 5, 10, 16, 20, 40} {
		few := Ports{61000, uint16(61000 + candidates - 1)}
		all := reachable(r, planFrom, planTo, few)
		for _, lanes := range []int{0, 16, 64} {
			n := count(queuesOf(t, r, planFrom, planTo, few, lanes))
			least, most := candidates, 0
			for _, c := range n {
				least, most = min(least, c), max(most, c)
			}
			if len(n) != len(all) || least != most {
				t.Errorf("%d candidates, %d queues within reach, %d lanes: got %v, want length %d", candidates, len(all), lanes, n, len(all))
			}
		}
	}
}

func TestPlanWithoutCandidatesFails(t *testing.T) {
	for _, candidates := range []Ports{{}, {5, 4}} {
		if _, err := Plan(microsoftRSS(4), planFrom, planTo, candidates, 4); !errors.Is(err, ErrNoCandidates) {
			t.Errorf("%s: got error %v, want %v", candidates, err, ErrNoCandidates)
		}
	}
}

func TestPlannedPortsCarryEqualFlowsEvenly(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	r := microsoftRSS(16)
	queues := queuesOf(t, r, planFrom, planTo, DefaultPorts, 0)
	for range 50 {
		flows, loads := NewFlows(16, DefaultGap), NewLoads(len(queues), 5)
		var packets [16]int
		hashes := distinctHashes(rng, 16)
		for packet := range 1600 {
			lane := flows.Choose(loads, Flow{1, hashes[packet%16]}, 1<<30+int64(packet)<<15, 1400)
			packets[queues[lane]]++
		}
		if busiest := slices.Max(packets[:]); busiest != 100 {
			t.Fatalf("16 flows of 100 packets: a queue has %d", busiest)
		}
	}
}

func FuzzPlan(f *testing.F) {
	f.Add(MicrosoftKey(), []byte{0, 0, 0, 1, 0, 0, 0, 2}, uint16(61000), uint16(61999), 16, byte(0), false)
	f.Add([]byte{}, []byte{}, uint16(0), uint16(65535), -1, byte(255), true)
	f.Add(make([]byte, 40), make([]byte, 512), uint16(1), uint16(65535), 1<<40, byte(1), true)
	f.Fuzz(func(t *testing.T, key, table []byte, first, last uint16, lanes int, kind byte, six bool) {
		r := &RSS{
			Key: key, Transform: Transform(kind & 3), Function: Function(kind >> 2 & 1),
			UDP4: Fields(kind >> 3 & 3), UDP6: Fields(kind >> 5 & 3),
		}
		for ; len(table) >= 4; table = table[4:] {
			r.Indirection = append(r.Indirection, binary.BigEndian.Uint32(table))
		}
		from, to := planFrom, planTo
		if six {
			from, to = planFrom6, planTo6
		}
		candidates := Ports{first, last}
		if _, err := Plan(r, from, to, candidates, lanes); err != nil {
			return
		}
		if n := len(queuesOf(t, r, from, to, candidates, lanes)); n == 0 || n > MaxPorts || lanes > 0 && n > lanes {
			t.Errorf("%d ports for %d lanes", n, lanes)
		}
	})
}

func BenchmarkPlan(b *testing.B) {
	for name, c := range map[string]struct {
		from netip.Addr
		to   netip.AddrPort
	}{"IPv4": {planFrom, planTo}, "IPv6": {planFrom6, planTo6}} {
		b.Run(name+"/1000 candidates", func(b *testing.B) {
			r := microsoftRSS(16)
			for b.Loop() {
				if _, err := Plan(r, c.from, c.to, DefaultPorts, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
