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

// Plan returns source ports for a sender at an address towards a local endpoint. Their packets arrive evenly spread
// over the queues in the NIC's indirection table: port i on queue i mod Q, the queues in order. Plan returns at most
// lanes ports, or, if lanes is 0, one per queue. More ports never harm order. But a sender with fewer flows than
// ports would use any idle ones, and might load one queue twice while another is idle.
//
// The ports are distinct, at most MaxPorts, and the same for the same arguments. The plan is as even as the
// candidates allow:
//   - With fewer lanes than queues, the first port's queue depends on the sender's address, so that senders do not all
//     start on the first queues.
//   - With more lanes than queues, the plan has whole rounds over the queues: 16 ports for 16 queues and 20 lanes. Four
//     queues with two ports each would carry twice the load of the others.
//   - A queue that no candidate reaches is left out. If the candidates of one queue run out, the plan ends with the round.
//     The hash is linear, so a key with linearly dependent bits leaves half of the queues unreachable, however many
//     candidates there are. With DefaultPorts, 99 of 100 random keys reach all of 16 queues.
//   - Queues with more table entries (ethtool -X DEV weight …) get proportionally more ports. Queues that differ by one
//     entry, as when 128 entries are divided among 48 queues, count as equal.
//
// A thousand candidates take less than 0.1 ms (BenchmarkPlan). Errors: ErrNotByPort if ports do not select the queue,
// ErrUnknownHash if they do so in an unknown way, ErrNoCandidates.
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
	reached := reachableQueues(rss, &h, to.Port(), candidates, limit)
	if limit < len(reached) {
		start := int(h.addresses % uint32(len(reached)))
		reached = slices.Concat(reached[start:], reached[:start])
	}
	ports, imbalances := assignPorts(reached, limit)
	if lanes <= 0 {
		return ports[:smallestEven(imbalances, len(reached))], nil
	}
	return ports[:largestEven(imbalances)], nil
}

// queueShare is a queue's share of a port plan.
type queueShare struct {
	queue  uint32
	weight int      // its number of table entries
	ports  []uint16 // ports that reach it and are not assigned yet
	dealt  int
	credit int
}

// queueShares returns the queues of the table, in order, with their weights.
func (r *RSS) queueShares() []queueShare {
	sorted := slices.Sorted(slices.Values(r.Indirection))
	var shares []queueShare
	for _, q := range sorted {
		if n := len(shares); n == 0 || shares[n-1].queue != q {
			shares = append(shares, queueShare{queue: q})
		}
		shares[len(shares)-1].weight++
	}
	byWeight := func(a, b queueShare) int { return cmp.Compare(a.weight, b.weight) }
	if len(shares) > 0 && slices.MaxFunc(shares, byWeight).weight-slices.MinFunc(shares, byWeight).weight <= 1 {
		for i := range shares {
			shares[i].weight = 1
		}
	}
	return shares
}

// reachableQueues returns the queues that candidates reach, each with at most limit of their ports.
func reachableQueues(rss *RSS, h *hasher, dst uint16, candidates Ports, limit int) []queueShare {
	shares := rss.queueShares()
	index := make([]int, len(rss.Indirection)) // of the share, by table entry
	for i, q := range rss.Indirection {
		index[i], _ = slices.BinarySearchFunc(shares, q, func(s queueShare, q uint32) int { return cmp.Compare(s.queue, q) })
	}
	for i := range candidates.Len() {
		port := candidates.First + uint16(i)
		if s := &shares[index[h.entry(port, dst)]]; len(s.ports) < limit {
			s.ports = append(s.ports, port)
		}
	}
	return slices.DeleteFunc(shares, func(s queueShare) bool { return len(s.ports) == 0 })
}

// assignPorts takes ports from the queues in turn, by weight. imbalances[n-1] is the imbalance of the first n ports.
func assignPorts(shares []queueShare, limit int) (ports []uint16, imbalances []float64) {
	for len(ports) < limit {
		s := nextShare(shares)
		if s == nil {
			break
		}
		ports = append(ports, s.ports[0])
		s.ports = s.ports[1:]
		s.dealt++
		imbalances = append(imbalances, imbalance(shares, len(ports)))
	}
	return ports, imbalances
}

// nextShare is smooth weighted round robin among the queues with ports left. Each queue earns its weight per turn;
// the one with the most credit is next and pays the sum of all weights. With equal weights the queues take turns.
func nextShare(shares []queueShare) *queueShare {
	var richest *queueShare
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

// imbalance is the load of the busiest queue as a multiple of its fair share, if n assigned ports carry equal load.
func imbalance(shares []queueShare, n int) float64 {
	total, busiest := 0, 0.0
	for _, s := range shares {
		total += s.weight
		busiest = max(busiest, float64(s.dealt)/float64(s.weight))
	}
	return busiest * float64(total) / float64(n)
}

// largestEven returns the largest number of ports with the least imbalance.
func largestEven(imbalances []float64) int {
	const equal = 1 + 1e-9 // tolerates rounding
	best, n := slices.Min(imbalances), 0
	for i, u := range imbalances {
		if u <= best*equal {
			n = i + 1
		}
	}
	return n
}

// smallestEven returns the smallest number of ports with nearly the least imbalance, at least one per queue if
// possible.
func smallestEven(imbalances []float64, queues int) int {
	const hardly = 1.05
	best := slices.Min(imbalances)
	for i := min(queues, len(imbalances)) - 1; i < len(imbalances); i++ {
		if imbalances[i] <= best*hardly {
			return i + 1
		}
	}
	return largestEven(imbalances)
}
