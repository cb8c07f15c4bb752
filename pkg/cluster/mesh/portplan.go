// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Plans are the source ports for nodes that spread towards a node, in order and by IP version. Empty: no plan.
type Plans struct{ V4, V6 []uint16 }

// For returns the ports of the plan for a destination address.
func (p *Plans) For(to netip.Addr) []uint16 {
	if to.Unmap().Is4() {
		return p.V4
	}
	return p.V6
}

// planProblem returns why a node that spreads over own cannot use a plan, or "". A plan is used entirely or not at all: a part
// of it may be uneven.
func planProblem(plan []uint16, own spread.Ports) string {
	if len(plan) > spread.MaxPorts {
		return fmt.Sprintf("its plan has %d ports, more than %d", len(plan), spread.MaxPorts)
	}
	for i, p := range plan {
		if !own.Contains(p) {
			return fmt.Sprintf("its plan has port %d, outside of this node's spread ports %s", p, own)
		}
		if slices.Contains(plan[:i], p) {
			return fmt.Sprintf("its plan has port %d twice", p)
		}
	}
	return ""
}

// ErrNoCommonPlan means that no set of ports is even for all senders at once.
var ErrNoCommonPlan = errors.New("no set of ports is even for all senders")

// maxTableLength is the largest indirection table that PlanFor supports.
const maxTableLength = 4096

// maxSenderOffsets bounds the sender offsets that a plan is evaluated for. A table of 128 entries has no more.
const maxSenderOffsets = 128

// PlanFor returns source ports for packets to an endpoint from any sender, such that they spread evenly over the queues of the
// NIC's indirection table. It returns none if there is only one queue. spread.Plan does the same for one known sender.
//
// The RSS hash is linear: a sender's address adds the same number, by exclusive or, to the hashes
// of all its ports. If the table's length is a power of two, it adds the same offset to all
// entries. There are as many offsets as entries. PlanFor chooses ports one after another. Each
// shares a queue with the fewest earlier ports, summed over all offsets. With 2, 4, 8, … queues of
// equal weight, each port reaches a queue of its own, for any sender and nearly any key. For fewer
// than 6 of 1,000 random keys with 8 queues, 12 with 16 and 20 with 32, source ports cannot reach
// all queues (TestNearlyEveryKeyReachesAllQueues). In this and all other cases, the plan is as even
// as one list for all senders can be.
//
// The result depends on the arguments only and has at most spread.MaxPorts ports. It takes 6 ms for a table of 128 entries and
// a tenth of a second for the largest. Errors: ErrNoCommonPlan, spread.ErrNotByPort, spread.ErrUnknownHash,
// spread.ErrNoCandidates.
func PlanFor(rss *spread.RSS, to netip.AddrPort, candidates spread.Ports) ([]uint16, error) {
	n := len(rss.Indirection)
	err := rss.ByPort(to.Addr())
	switch {
	case err != nil:
	case candidates.Len() == 0:
		err = spread.ErrNoCandidates
	case n == 0 || n > maxTableLength || n&(n-1) != 0:
		err = fmt.Errorf("indirection table of %d entries: %w", n, ErrNoCommonPlan)
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

// portEntry is a port and the table entry that it reaches, for a sender with offset 0.
type portEntry struct {
	port  uint16
	entry int
}

// portEntries returns the first port for each reachable entry: two ports of one entry share a queue for any sender.
func portEntries(rss *spread.RSS, to netip.AddrPort, candidates spread.Ports) (all []portEntry, err error) {
	plain := *rss // a table in which each entry is a queue of its own
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

// tally counts the chosen ports per sender offset and queue.
type tally struct {
	queueOf     []int     // queue of each entry, numbered from 0
	cost        []float64 // of a port on each queue: lower for a queue with more entries
	totalWeight float64   // of all queues
	offsets     []int     // sender offsets, which are combined with an entry by exclusive or
	portCount   [][]int   // by offset and queue
	maxLoad     []float64 // by offset
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
	// An odd factor leaves no offset out, and samples a large table evenly.
	const odd = 0x9e3779b1
	for i := range min(len(t.queueOf), maxSenderOffsets) {
		t.offsets = append(t.offsets, i*odd&(len(t.queueOf)-1))
		t.portCount = append(t.portCount, make([]int, len(queues)))
	}
	t.maxLoad = make([]float64, len(t.offsets))
	return t
}

// choose adds ports for as long as that improves the balance.
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

// best returns the index of the port that shares queues with the fewest chosen ports.
func (t *tally) best(reached []portEntry) (best int) {
	least := -1.0
	for i, r := range reached {
		var meets float64
		for v, view := range t.offsets {
			q := t.queueOf[r.entry^view]
			meets += float64(2*t.portCount[v][q]+1) * t.cost[q] // its increment to the sum of squares
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

// imbalance returns the load of the busiest queue relative to its fair share of n ports, averaged over all offsets.
func (t *tally) imbalance(n int) (sum float64) {
	for _, b := range t.maxLoad {
		sum += b
	}
	return sum / float64(len(t.maxLoad)) * t.totalWeight / float64(n)
}
