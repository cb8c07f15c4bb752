// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// ErrNoCandidates means that the range to plan from is empty.
var ErrNoCandidates = errors.New("no ports to choose from")

// Plan returns source ports for what comes from an address to a local endpoint such that they arrive evenly spread over
// the queues that the NIC's table names: port i on queue i mod Q, the queues in order. At most lanes of them, or, if
// lanes is 0, as many as it takes: one per queue. More do no harm to order, but a sender with fewer flows than ports then
// takes any that are idle, and may meet one queue twice while another has nothing.
//
// The ports are distinct, at most MaxPorts, and the same for the same arguments. The plan is as even as candidates
// allow, which comes first:
//   - With fewer lanes than queues, the first port's queue depends on the sender's address, so that not all senders
//     meet on the first queues.
//   - With more, there are whole rounds over the queues: 16 ports for 16 queues and 20 lanes, as four queues with two
//     ports each would carry twice the others' load.
//   - A queue that no candidate reaches is left out; if the candidates of one run out, the plan ends with the round.
//     The hash is linear, so that a key whose bits depend on each other leaves half the queues out of reach, however
//     many candidates there are: 16 queues are all reached from DefaultPorts with 99 of 100 random keys.
//   - Queues with a larger part of the table (ethtool -X DEV weight …) get as much more of the ports; parts that differ
//     by one entry, as when 128 entries are dealt to 48 queues, are equal.
//
// A thousand candidates take less than 0.1 ms (BenchmarkPlan). Errors: ErrNotByPort if ports do not choose the queue, ErrUnknownHash if they do in
// an unknown way, ErrNoCandidates.
func Plan(rss *RSS, from netip.Addr, to netip.AddrPort, candidates Ports, lanes int) ([]uint16, error) {
	h, err := rss.hasher(from, to.Addr())
	if err == nil {
		err = rss.ByPort(from)
	}
	if err == nil && candidates.Len() == 0 {
		err = ErrNoCandidates
	}
	if err != nil {
		return nil, fmt.Errorf("planning ports from %s to %s: %w", from, to, err)
	}
	limit := MaxPorts
	if lanes > 0 {
		limit = min(limit, lanes)
	}
	reached := reach(rss, &h, to.Port(), candidates, limit)
	if limit < len(reached) {
		start := int(h.addresses % uint32(len(reached)))
		reached = slices.Concat(reached[start:], reached[:start])
	}
	ports, uneven := deal(reached, limit)
	if lanes <= 0 {
		return ports[:fewest(uneven, len(reached))], nil
	}
	return ports[:most(uneven)], nil
}

// share is a queue's part of a plan.
type share struct {
	queue  uint32
	weight int      // its part of the table
	ports  []uint16 // that reach it, not dealt yet
	dealt  int
	credit int
}

// shares returns the queues of the table, in order, with their weights.
func (r *RSS) shares() []share {
	sorted := slices.Sorted(slices.Values(r.Indirection))
	var shares []share
	for _, q := range sorted {
		if n := len(shares); n == 0 || shares[n-1].queue != q {
			shares = append(shares, share{queue: q})
		}
		shares[len(shares)-1].weight++
	}
	byWeight := func(a, b share) int { return cmp.Compare(a.weight, b.weight) }
	if len(shares) > 0 && slices.MaxFunc(shares, byWeight).weight-slices.MinFunc(shares, byWeight).weight <= 1 {
		for i := range shares {
			shares[i].weight = 1
		}
	}
	return shares
}

// reach returns the queues that candidates reach, each with its first few of them.
func reach(rss *RSS, h *hasher, dst uint16, candidates Ports, few int) []share {
	shares := rss.shares()
	index := make([]int, len(rss.Indirection)) // of the share, by table entry
	for i, q := range rss.Indirection {
		index[i], _ = slices.BinarySearchFunc(shares, q, func(s share, q uint32) int { return cmp.Compare(s.queue, q) })
	}
	for i := range candidates.Len() {
		port := candidates.First + uint16(i)
		if s := &shares[index[h.entry(port, dst)]]; len(s.ports) < few {
			s.ports = append(s.ports, port)
		}
	}
	return slices.DeleteFunc(shares, func(s share) bool { return len(s.ports) == 0 })
}

// deal takes ports from the shares in turn, by weight, and tells of each number of ports how uneven so many would be.
func deal(shares []share, limit int) (ports []uint16, uneven []float64) {
	for len(ports) < limit {
		s := next(shares)
		if s == nil {
			break
		}
		ports = append(ports, s.ports[0])
		s.ports = s.ports[1:]
		s.dealt++
		uneven = append(uneven, unevenness(shares, len(ports)))
	}
	return ports, uneven
}

// next is weighted round robin without bursts, among the shares that have ports left: each earns its weight per turn, the
// richest is next and pays what all of them earned. With equal weights that is one after another.
func next(shares []share) *share {
	var richest *share
	earned := 0
	for i := range shares {
		s := &shares[i]
		if len(s.ports) == 0 {
			continue
		}
		s.credit += s.weight
		earned += s.weight
		if richest == nil || s.credit > richest.credit {
			richest = s
		}
	}
	if richest != nil {
		richest.credit -= earned
	}
	return richest
}

// unevenness is the load of the busiest queue as a multiple of its part, if n ports that were dealt carry the same load.
func unevenness(shares []share, n int) float64 {
	total, busiest := 0, 0.0
	for _, s := range shares {
		total += s.weight
		busiest = max(busiest, float64(s.dealt)/float64(s.weight))
	}
	return busiest * float64(total) / float64(n)
}

// most returns the largest of the numbers of ports that are the most even.
func most(uneven []float64) int {
	const equal = 1 + 1e-9 // but for rounding
	best, n := slices.Min(uneven), 0
	for i, u := range uneven {
		if u <= best*equal {
			n = i + 1
		}
	}
	return n
}

// fewest returns the smallest number of ports that is hardly less even than the most even one, with one for each queue
// if that can be.
func fewest(uneven []float64, queues int) int {
	const hardly = 1.05
	best := slices.Min(uneven)
	for i := min(queues, len(uneven)) - 1; i < len(uneven); i++ {
		if uneven[i] <= best*hardly {
			return i + 1
		}
	}
	return most(uneven)
}
