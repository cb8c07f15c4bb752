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

// fits tells why a plan cannot be followed by a node that spreads over own; "": it can, or there is none. A plan is followed
// whole or not at all: of one that is cut short nobody knows what is left of its evenness.
func fits(plan []uint16, own spread.Ports) string {
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

// maxTable is the largest indirection table that is planned for.
const maxTable = 4096

// maxViews bounds the senders that a plan is weighed for: 128 are all that a table of that length can tell apart.
const maxViews = 128

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
	case n == 0 || n > maxTable || n&(n-1) != 0:
		err = fmt.Errorf("a table of %d entries: %w", n, ErrNoCommonPlan)
	}
	if err != nil {
		return nil, fmt.Errorf("planning ports to %s: %w", to, err)
	}
	if len(rss.Queues()) < 2 {
		return nil, nil
	}
	reached, err := entriesOf(rss, to, candidates)
	if err != nil {
		return nil, fmt.Errorf("planning ports to %s: %w", to, err)
	}
	return newTally(rss).choose(reached), nil
}

// reach is a port and the entry of the table that it leads to, for a sender that adds nothing.
type reach struct {
	port  uint16
	entry int
}

// entriesOf returns the first port for each entry that any leads to: two with one entry meet on one queue, whoever sends.
func entriesOf(rss *spread.RSS, to netip.AddrPort, candidates spread.Ports) (all []reach, err error) {
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
			if all = append(all, reach{port, entry}); len(all) == len(seen) {
				break
			}
		}
	}
	return all, nil
}

// tally counts the ports that each kind of sender has on each queue.
type tally struct {
	queue   []int     // of each entry, counted from 0
	cost    []float64 // of a port on each queue: less on one that has more of the table
	weights float64   // of all queues
	views   []int     // what the kinds of sender add to an entry
	loads   [][]int   // by view and queue
	busiest []float64 // by view
}

func newTally(rss *spread.RSS) *tally {
	queues := rss.Queues()
	t := &tally{queue: make([]int, len(rss.Indirection)), cost: make([]float64, len(queues))}
	parts := make([]int, len(queues))
	for i, q := range rss.Indirection {
		t.queue[i], _ = slices.BinarySearch(queues, int(q))
		parts[t.queue[i]]++
	}
	equal := slices.Max(parts)-slices.Min(parts) <= 1
	for i, n := range parts {
		if equal {
			n = 1
		}
		t.cost[i], t.weights = 1/float64(n), t.weights+float64(n)
	}
	// An odd factor leaves none out, and takes of a large table a few from everywhere.
	const odd = 0x9e3779b1
	for i := range min(len(t.queue), maxViews) {
		t.views = append(t.views, i*odd&(len(t.queue)-1))
		t.loads = append(t.loads, make([]int, len(queues)))
	}
	t.busiest = make([]float64, len(t.views))
	return t
}

// choose takes ports as long as they make it more even.
func (t *tally) choose(reached []reach) []uint16 {
	const hardly = 1.05
	var ports []uint16
	var uneven []float64
	queues := len(t.cost)
	for len(ports) < spread.MaxPorts && len(reached) > 0 {
		best := t.best(reached)
		t.take(reached[best].entry)
		ports, reached = append(ports, reached[best].port), slices.Delete(reached, best, best+1)
		uneven = append(uneven, t.uneven(len(ports)))
	}
	few := min(queues, len(ports)) - 1
	least := slices.Min(uneven[few:])
	return ports[:few+1+slices.IndexFunc(uneven[few:], func(u float64) bool { return u <= least*hardly })]
}

// best returns the index of the port that meets the least of what was taken.
func (t *tally) best(reached []reach) (best int) {
	least := -1.0
	for i, r := range reached {
		var meets float64
		for v, view := range t.views {
			q := t.queue[r.entry^view]
			meets += float64(2*t.loads[v][q]+1) * t.cost[q] // what it adds to the sum of squares
		}
		if least < 0 || meets < least {
			best, least = i, meets
		}
	}
	return best
}

func (t *tally) take(entry int) {
	for v, view := range t.views {
		q := t.queue[entry^view]
		t.loads[v][q]++
		t.busiest[v] = max(t.busiest[v], float64(t.loads[v][q])*t.cost[q])
	}
}

// uneven is the load of the busiest queue as a multiple of its part, of n ports, on average over all kinds of sender.
func (t *tally) uneven(n int) (sum float64) {
	for _, b := range t.busiest {
		sum += b
	}
	return sum / float64(len(t.busiest)) * t.weights / float64(n)
}
