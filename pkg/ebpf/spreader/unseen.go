// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"maps"
	"time"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
)

// sentSample is a count of the bytes that WireGuard had sent to a peer at a time.
type sentSample struct {
	bytes  uint64
	at     time.Time
	unseen int // number of intervals in a row of whose messages none passed the spread program
}

// unseenWatch has a sample of each peer, by its public key. It finds peers whose messages leave
// from another port than the listen port. A NAT of this host has given that to the flow of
// another, such as a container (conntrack). Nil: nothing is watched.
type unseenWatch map[string]sentSample

// unseenIntervals is the number of intervals after which a peer is reported. The samples of an interval are not taken at one moment.
const unseenIntervals = 2

func (w unseenWatch) has(key string) bool { return w[key].unseen >= unseenIntervals }

// update takes a sample at a time before which the tunnel's counters were not read.
func (w unseenWatch) update(began time.Time, pl *plan, s *programs.State) error {
	if w == nil {
		return nil
	}
	idle, err := s.Idle(pl.cfg.Port)
	if err != nil {
		return err
	}
	next := unseenWatch{}
	for _, p := range pl.peers {
		found := pl.byAddress[pl.zones.named(p.Endpoint).Addr()]
		if found == nil || len(p.Lanes) == 0 || p.ProbeKeys == (programs.ProbeKeys{}) {
			continue
		}
		before := w[found.Key]
		after := sentSample{bytes: found.SentBytes, at: began, unseen: before.unseen}
		ago, seen := idle[p.Endpoint]
		switch {
		case before.at.IsZero() || found.SentBytes < before.bytes+idleBytes:
		case seen && ago <= time.Since(before.at)+time.Second: // more than the granularity of ago
			after.unseen = 0
		default:
			after.unseen++
		}
		next[found.Key] = after
	}
	clear(w)
	maps.Copy(w, next)
	return nil
}
