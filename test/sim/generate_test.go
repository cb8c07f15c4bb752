// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// generate makes the schedule of a seed.
func generate(seed uint64) *schedule {
	r := rand.New(rand.NewPCG(seed, 0x51))
	s := &schedule{Seed: seed, Lanes: 1 + r.IntN(2), Spread: r.IntN(3) == 0, Network: generateNetwork(r)}
	switch k := r.IntN(100); {
	case k < 60:
		s.Hosts = 2
	case k < 88:
		s.Hosts = 3 + r.IntN(3)
	case k < 99:
		s.Hosts, s.Star = 6+r.IntN(7), true
	default:
		s.Hosts, s.Star = 50, true
	}
	if s.Star {
		s.Lanes = 1 // a lane has buffers of megabytes
	}
	if s.Star || s.Hosts == 2 {
		s.NATed = []int{0, 2}[r.IntN(2)]
	}
	end := 60_000 + r.IntN(400_000)
	for range s.Hosts + r.IntN(4) {
		s.Events = append(s.Events, generateTraffic(r, s, end))
	}
	for range 2 + r.IntN(14) {
		s.Events = append(s.Events, generateFault(r, s, end))
	}
	if o := rand.New(rand.NewPCG(seed, 0x6f)); o.IntN(8) == 0 {
		s.Events = append(s.Events, withPeers(o, s, event{AtMS: o.IntN(end), Do: "outage"}))
	}
	if s.Spread && s.Hosts <= 5 && s.NATed == 0 {
		generateSpray(rand.New(rand.NewPCG(seed, 0x59)), s, end)
	}
	if s.Spread && !s.Spray && s.Hosts <= 5 && s.NATed == 0 {
		generateFallback(rand.New(rand.NewPCG(seed, 0x66)), s, end)
	}
	if s.Spread && !s.Spray && !s.Calm && s.Hosts <= 5 && s.NATed == 0 {
		generateRelocation(rand.New(rand.NewPCG(seed, 0x6d)), s, end)
	}
	if s.Spread && !s.Spray && !s.Calm && s.Hosts <= 5 && s.NATed == 0 {
		generateWall(rand.New(rand.NewPCG(seed, 0x77)), s)
	}
	s.PostQuantum = s.Spread && rand.New(rand.NewPCG(seed, 0x71)).IntN(3) > 0
	slices.SortStableFunc(s.Events, func(a, b event) int { return cmp.Compare(a.AtMS, b.AtMS) })
	return s
}

// generateSpray lets a quarter of the schedules spray a flow. Meanwhile, packets are replayed and one end is upgraded. Half of these schedules have no
// other faults.
func generateSpray(r *rand.Rand, s *schedule, end int) {
	if r.IntN(4) > 0 {
		return
	}
	s.Spray, s.Lanes = true, 1
	if s.Calm = r.IntN(2) == 0; s.Calm {
		s.Network = conditions{DelayMS: s.Network.DelayMS, Ordered: true}
		s.Events = slices.DeleteFunc(s.Events, func(e event) bool { return !harmless[e.Do] })
	}
	e := withPeers(r, s, event{AtMS: r.IntN(end), Do: "elephant"})
	upgraded := e.A
	if r.IntN(2) == 0 {
		upgraded = e.B
	}
	at := e.AtMS + elephantBegins + elephantGrows + s.Network.DelayMS + 20 // some sprayed packets have arrived
	s.Events = append(s.Events, e, event{AtMS: at, Do: "replay", A: e.B, N: 40},
		event{AtMS: at + 1 + r.IntN(50), Do: "upgrade", A: upgraded, MS: r.IntN(50)})
}

// generateFallback lets a firewall drop what leaves from source ports, or has an outage, in a sixth of the schedules, with no other faults.
func generateFallback(r *rand.Rand, s *schedule, end int) {
	if r.IntN(6) > 0 {
		return
	}
	s.Calm, s.Network = true, conditions{DelayMS: s.Network.DelayMS, Ordered: true}
	s.Events = slices.DeleteFunc(s.Events, func(e event) bool { return !harmless[e.Do] })
	s.Events = append(s.Events, withPeers(r, s, event{AtMS: r.IntN(end), Do: "fallback", N: 1 + r.IntN(40)}))
}

// generateWall has a firewall drop what leaves from source ports from the start on, in a third of the schedules, with no other faults.
func generateWall(r *rand.Rand, s *schedule) {
	if r.IntN(3) > 0 {
		return
	}
	s.Calm, s.Network = true, conditions{DelayMS: s.Network.DelayMS, Ordered: true}
	s.Events = slices.DeleteFunc(s.Events, func(e event) bool { return !harmless[e.Do] })
	s.Events = append(s.Events, withPeers(r, s, event{Do: "wall"}))
}

// generateRelocation lets a host that spreads move in a third of the schedules, or forge its address, with no other faults.
func generateRelocation(r *rand.Rand, s *schedule, end int) {
	if r.IntN(3) > 0 {
		return
	}
	s.Calm, s.Network = true, conditions{DelayMS: s.Network.DelayMS, Ordered: true}
	s.Plans = r.IntN(3) == 0
	s.Events = slices.DeleteFunc(s.Events, func(e event) bool { return !harmless[e.Do] })
	s.Events = append(s.Events, withPeers(r, s, event{AtMS: r.IntN(end), Do: map[bool]string{true: "forge", false: "relocate"}[s.Plans], N: r.IntN(2)}))
}

// harmless are the actions that neither delay nor reorder packets.
var harmless = map[string]bool{"send": true, "train": true, "burst": true, "junk": true, "flip": true, "replay": true}

func generateNetwork(r *rand.Rand) conditions {
	n := conditions{DelayMS: 1 + r.IntN(100)}
	if n.Ordered = r.IntN(3) == 0; !n.Ordered {
		n.JitterMS = r.IntN(60)
	}
	if r.IntN(3) > 0 {
		n.Loss = r.IntN(200)
	}
	if r.IntN(2) > 0 && !n.Ordered {
		n.Duplicate, n.Late = r.IntN(100), r.IntN(50)
	}
	return n
}

// generateTraffic makes a flow that lasts for some time: N packets or trains with pauses of MS.
func generateTraffic(r *rand.Rand, s *schedule, end int) event {
	e := withPeers(r, s, event{AtMS: r.IntN(end / 2), Do: "send", Size: 60 + r.IntN(1340), MS: 20 + r.IntN(3000)})
	if r.IntN(4) == 0 {
		e.Do, e.Size = "train", 60+r.IntN(500)
	}
	if r.IntN(3) == 0 {
		e.MS = 5000 + r.IntN(20000) // sparse: the timers of keepalives matter
	}
	e.N = min(300, 1+(end-e.AtMS)/e.MS)
	return e
}

// faults are the kinds of events besides traffic, with their weights.
var faults = []struct {
	do     string
	weight int
}{
	{"roam", 8},
	{"forget", 6},
	{"cut", 8},
	{"kill", 6},
	{"upgrade", 5},
	{"down", 4},
	{"clock", 3},
	{"suspend", 3},
	{"pause", 5},
	{"hold", 4},
	{"narrow", 3},
	{"junk", 4},
	{"flip", 6},
	{"replay", 8},
	{"move", 8},
	{"spoof", 5},
	{"stray", 3},
	{"spray", 2},
	{"burst", 6},
	{"flood", 1},
}

func generateFault(r *rand.Rand, s *schedule, end int) event {
	total := 0
	for _, f := range faults {
		total += f.weight
	}
	at, k := r.IntN(end), r.IntN(total)
	for _, f := range faults {
		if k -= f.weight; k < 0 {
			e := withPeers(r, s, event{AtMS: at, Do: f.do, N: 1 + r.IntN(40), Size: 60 + r.IntN(1340)})
			e.MS = []int{100, 1000, 5000, 30_000, 100_000, 200_000}[r.IntN(6)]/2 + r.IntN(1000)
			switch {
			case e.Do == "hold" && s.Network.Ordered:
				e.Do = "cut"
			case e.Do == "hold" && e.MS > 10_000:
				e.MS = 285_000 + e.MS%10_000 // longer than a packet may take
			}
			return e
		}
	}
	panic("unreachable")
}

// withPeers chooses two hosts that are peers.
func withPeers(r *rand.Rand, s *schedule, e event) event {
	pairs := s.pairs()
	p := pairs[r.IntN(len(pairs))]
	e.A, e.B = p[0], p[1]
	if r.IntN(2) == 0 {
		e.A, e.B = e.B, e.A
	}
	return e
}
