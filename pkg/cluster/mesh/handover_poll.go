// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// HandoverPoll decides how often to check whether a peer has started to use its next key. Packets that the peer sends before
// the check are lost. The checks are therefore frequent for as long as a key change usually takes,
// and rarer afterwards. They stop for a node that keeps a next key for very long. Its allowed IPs
// then move when the node publishes the change, or at the next reconcile. A node that publishes one
// next key after another gets frequent checks again only after that time.
//
// The zero value is ready. It is not safe for concurrent use.
type HandoverPoll struct {
	// Propagation is how long other nodes wait between the announcement of a key and its use.
	Propagation time.Duration
	changes     map[string]keyChange // by node
}

// keyChange is a change of one node's key.
type keyChange struct {
	next              noise.PublicKey
	started, lastSeen time.Time
}

const (
	// fastInterval is the interval while a change is expected, slowInterval the one afterwards.
	fastInterval, slowInterval = 10 * time.Millisecond, 100 * time.Millisecond
	// expectedDuration is how long a change takes after Propagation.
	expectedDuration = 20 * time.Second
	// pollTimeout exceeds the time that a node waits for the API.
	pollTimeout = 15 * time.Minute
)

// Interval returns the time until the next check, or 0 if none is needed.
func (h *HandoverPoll) Interval(now time.Time, peers []Peer) (every time.Duration) {
	for i := range peers {
		if !peers[i].isReplacement() {
			h.finish(&peers[i])
			continue
		}
		switch age := h.age(now, &peers[i]); {
		case age < h.Propagation+expectedDuration:
			every = fastInterval
		case age < pollTimeout && every == 0:
			every = slowInterval
		}
	}
	for node, b := range h.changes {
		if b.lastSeen != now && now.Sub(b.started) >= pollTimeout {
			delete(h.changes, node)
		}
	}
	return every
}

// finish forgets a change once the new key is the node's current key.
func (h *HandoverPoll) finish(p *Peer) {
	if b, known := h.changes[p.Node]; known && b.next == p.Key {
		delete(h.changes, p.Node)
	}
}

// age returns how long a node's key has been changing. Another next key restarts the time only after pollTimeout.
func (h *HandoverPoll) age(now time.Time, p *Peer) time.Duration {
	b, known := h.changes[p.Node]
	if !known || b.next != p.Key && now.Sub(b.started) >= pollTimeout {
		b = keyChange{next: p.Key, started: now}
	}
	if h.changes == nil {
		h.changes = map[string]keyChange{}
	}
	b.lastSeen = now
	h.changes[p.Node] = b
	return now.Sub(b.started)
}
