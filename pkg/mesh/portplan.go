// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/spread"
)

// Plans are source ports, in order, for those who spread towards a node, by the version of IP. Empty: none is planned.
type Plans struct{ V4, V6 []uint16 }

// For returns the ports planned for what is sent to an address.
func (p *Plans) For(to netip.Addr) []uint16 {
	if to.Unmap().Is4() {
		return p.V4
	}
	return p.V6
}

// planProblem tells why a plan cannot be followed by a node that spreads over own; "": it can, or there is none. A plan is followed
// whole or not at all: of one that is cut short nobody knows what is left of its evenness.
func planProblem(plan []uint16, own spread.Ports) string {
	if len(plan) > spread.MaxPorts {
		return fmt.Sprintf("it plans %d ports, more than %d", len(plan), spread.MaxPorts)
	}
	for i, p := range plan {
		if !own.Contains(p) {
			return fmt.Sprintf("it plans port %d, which is none of %s that this node spreads over", p, own)
		}
		if slices.Contains(plan[:i], p) {
			return fmt.Sprintf("it plans port %d twice", p)
		}
	}
	return ""
}

// ErrNoCommonPlan means that no ports are even for all senders at once.
var ErrNoCommonPlan = errors.New("no ports suit all senders")

// maxTableLength is the largest indirection table that is planned for.
const maxTableLength = 4096

// maxSenderOffsets bounds the senders that a plan is weighed for: 128 are all that a table of that length can tell apart.
const maxSenderOffsets = 128

// PlanFor returns source ports for what any node sends to an endpoint, such that it arrives evenly spread over the queues
// that the NIC's table names, whoever the sender is; none where there is but one queue. spread.Plan does it for one sender.
//
// The hash is linear: a sender's address adds one number to the hashes of all its ports. Where the table's length is a power
// of two, that moves all its ports' entries alike, by exclusive or, and there are no more kinds of sender than entries. The
// ports are chosen one after another, each where it meets the least of those before it, over all kinds. With 2, 4, 8, … queues
// of equal weight that is one queue each for everybody, with nearly every key: under 6 of 1,000 random ones with 8 queues, 12
// with 16 and 20 with 32, source ports do not reach all (TestNearlyEveryKeyReachesAllQueues). Then, and else, it is as even as
// one list for all can be.
//
// It depends on nothing but the arguments, has at most spread.MaxPorts ports, and costs 6 ms for a table of 128 entries and a tenth of
// a second for the largest. Errors: ErrNoCommonPlan, spread.ErrNotByPort, spread.ErrUnknownHash, spread.ErrNoCandidates.
func PlanFor(rss *spread.RSS, to netip.AddrPort, candidates spread.Ports) ([]uint16, error) {
	n := len(rss.Indirection)
	err := rss.ByPort(to.Addr())
	switch {
	case err != nil:
	case candidates.Len() == 0:
		err = spread.ErrNoCandidates
	case n == 0 || n > maxTableLength || n&(n-1) != 0:
		err = fmt.Errorf("a table of %d entries: %w", n, ErrNoCommonPlan)
	}
	if err != nil {
		return nil, fmt.Errorf("planning ports to %s: %w", to, err)
	}
	if len(rss.Queues()) < 2 {
		return nil, nil
	}
	reached, err := portEntries(rss, to, candidates)
	if err != nil {
		return nil, fmt.Errorf("planning ports to %s: %w", to, err)
	}
	return newTally(rss).choose(reached), nil
}

// portEntry is a port and the entry of the table that it leads to, for a sender that adds nothing.
type portEntry struct {
	port  uint16
	entry int
}

// portEntries returns the first port for each entry that any leads to: two with one entry meet on one queue, whoever sends.
func portEntries(rss *spread.RSS, to netip.AddrPort, candidates spread.Ports) (all []portEntry, err error) {
	plain := *rss // whose queues are the entries
	plain.Indirection = make([]uint32, len(rss.Indirection))
	for i := range plain.Indirection {
		plain.Indirection[i] = uint32(i)
	}
	from := netip.IPv6Unspecified()
	if to.Addr().Unmap().Is4() {
		from = netip.IPv4Unspecified()
	}
	seen := make([]bool, len(plain.Indirection))
	for i := range candidates.Len() {
		port := candidates.First + uint16(i)
		entry, err := plain.Queue(netip.AddrPortFrom(from, port), to)
		if err != nil {
			return nil, err
		}
		if !seen[entry] {
			seen[entry] = true
			if all = append(all, portEntry{port, entry}); len(all) == len(seen) {
				break
			}
		}
	}
	return all, nil
}

// tally counts the ports that each kind of sender has on each queue.
type tally struct {
	queueOf     []int     // of each entry, counted from 0
	cost        []float64 // of a port on each queue: less on one that has more of the table
	totalWeight float64   // of all queues
	offsets     []int     // what the kinds of sender add to an entry
	portCount   [][]int   // by view and queue
	maxLoad     []float64 // by view
}

func newTally(rss *spread.RSS) *tally {
	queues := rss.Queues()
	t := &tally{queueOf: make([]int, len(rss.Indirection)), cost: make([]float64, len(queues))}
	parts := make([]int, len(queues))
	for i, q := range rss.Indirection {
		t.queueOf[i], _ = slices.BinarySearch(queues, int(q))
		parts[t.queueOf[i]]++
	}
	equal := slices.Max(parts)-slices.Min(parts) <= 1
	for i, n := range parts {
		if equal {
			n = 1
		}
		t.cost[i], t.totalWeight = 1/float64(n), t.totalWeight+float64(n)
	}
	// An odd factor leaves none out, and takes of a large table a few from everywhere.
	const odd = 0x9e3779b1
	for i := range min(len(t.queueOf), maxSenderOffsets) {
		t.offsets = append(t.offsets, i*odd&(len(t.queueOf)-1))
		t.portCount = append(t.portCount, make([]int, len(queues)))
	}
	t.maxLoad = make([]float64, len(t.offsets))
	return t
}

// choose takes ports as long as they make it more even.
func (t *tally) choose(reached []portEntry) []uint16 {
	const hardly = 1.05
	var ports []uint16
	var uneven []float64
	queues := len(t.cost)
	for len(ports) < spread.MaxPorts && len(reached) > 0 {
		best := t.best(reached)
		t.add(reached[best].entry)
		ports, reached = append(ports, reached[best].port), slices.Delete(reached, best, best+1)
		uneven = append(uneven, t.imbalance(len(ports)))
	}
	few := min(queues, len(ports)) - 1
	least := slices.Min(uneven[few:])
	return ports[:few+1+slices.IndexFunc(uneven[few:], func(u float64) bool { return u <= least*hardly })]
}

// best returns the index of the port that meets the least of what was taken.
func (t *tally) best(reached []portEntry) (best int) {
	least := -1.0
	for i, r := range reached {
		var meets float64
		for v, view := range t.offsets {
			q := t.queueOf[r.entry^view]
			meets += float64(2*t.portCount[v][q]+1) * t.cost[q] // what it adds to the sum of squares
		}
		if least < 0 || meets < least {
			best, least = i, meets
		}
	}
	return best
}

func (t *tally) add(entry int) {
	for v, view := range t.offsets {
		q := t.queueOf[entry^view]
		t.portCount[v][q]++
		t.maxLoad[v] = max(t.maxLoad[v], float64(t.portCount[v][q])*t.cost[q])
	}
}

// imbalance is the load of the busiest queue as a multiple of its part, of n ports, on average over all kinds of sender.
func (t *tally) imbalance(n int) (sum float64) {
	for _, b := range t.maxLoad {
		sum += b
	}
	return sum / float64(len(t.maxLoad)) * t.totalWeight / float64(n)
}
