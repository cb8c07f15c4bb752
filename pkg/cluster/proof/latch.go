// SPDX-License-Identifier: Apache-2.0

package proof

import "time"

// latchTime is how long all must be proved before a node becomes strict.
const latchTime = 10 * time.Second

// Latch closes once all peers of a node are proved in both directions while the node is encrypted.
// It never opens by itself: Open does so, if the configuration permits cleartext.
type Latch struct {
	Closed bool
	since  time.Time // since when all is proved; zero: it is not
}

// Update takes the present facts. all reports whether each node that takes part is a peer.
func (l *Latch) Update(now time.Time, f *Facts, all bool) {
	s := &f.Peers
	if !all || s.Peers == 0 || s.Mutual < s.Peers || encrypted(now, f).Status != True {
		l.since = time.Time{}
		return
	}
	if l.since.IsZero() {
		l.since = now
	}
	l.Closed = l.Closed || now.Sub(l.since) >= latchTime
}

// Open opens the latch.
func (l *Latch) Open() { *l = Latch{} }
