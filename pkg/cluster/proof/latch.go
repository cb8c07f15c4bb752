// SPDX-License-Identifier: Apache-2.0

package proof

import "time"

// latchTime is how long all must be proved before a node becomes strict.
const latchTime = 10 * time.Second

// Latch is ready while all peers of a node have been proved in both directions, and the node
// encrypted, for latchTime. A node that becomes strict then stays so by its status and its files.
type Latch struct {
	since time.Time // since when all is proved; zero: it is not
}

// Ready takes the present facts. all reports whether each node that takes part is a peer.
func (l *Latch) Ready(now time.Time, f *Facts, all bool) bool {
	s := &f.Peers
	if !all || s.Peers == 0 || s.Mutual < s.Peers || encrypted(now, f).Status != True {
		l.since = time.Time{}
		return false
	}
	if l.since.IsZero() {
		l.since = now
	}
	return now.Sub(l.since) >= latchTime
}
