// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/noise"
)

// HandoverPoll says how often to look whether a peer has begun to use its next key. What it sends in between is lost, so that is
// often for as long as a change of a key usually takes, and less often then. A node that keeps a next key for ever is not looked
// for at all after a while: its allowed IPs then move when it tells, or at the next look. One that makes one after the other
// and uses none is looked for as often again only after that while.
//
// The zero value is ready. It must not be used concurrently.
type HandoverPoll struct {
	// Propagation is RotationLimits.Propagation of the others.
	Propagation time.Duration
	changes     map[string]keyChange // by node
}

// keyChange is the change of one node's key.
type keyChange struct {
	next              noise.PublicKey
	started, lastSeen time.Time
}

const (
	// fastInterval is how often to look while a change is expected, and loosely afterwards.
	fastInterval, slowInterval = 10 * time.Millisecond, 100 * time.Millisecond
	// expectedDuration is how long a change takes, beyond what others are given to learn of it.
	expectedDuration = 20 * time.Second
	// pollTimeout is longer than any node waits for the others (Patience of RotationLimits), and for the API besides.
	pollTimeout = 15 * time.Minute
)

// Interval returns how long to wait between looks; 0: none is needed.
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

// finish forgets the change of a node's key that is the key by now.
func (h *HandoverPoll) finish(p *Peer) {
	if b, known := h.changes[p.Node]; known && b.next == p.Key {
		delete(h.changes, p.Node)
	}
}

// age is for how long a node's key has been changing. Another next key begins that anew only after the life of the one before.
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
