// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/noise"
)

// Handovers says how often to look whether a peer has begun to use its next key. What it sends in between is lost, so that is
// often for as long as a change of a key usually takes, and less often then. A node that keeps a next key for ever is not looked
// for at all after a while: its allowed IPs then move when it tells, or at the next look. One that makes one after the other
// and uses none is looked for as often again only after that while.
//
// The zero value is ready. It must not be used concurrently.
type Handovers struct {
	// Learn is RotationLimits.Learn of the others.
	Learn time.Duration
	begun map[string]begun // by node
}

// begun is the change of one node's key.
type begun struct {
	next     noise.PublicKey
	at, seen time.Time
}

const (
	// closely is how often to look while a change is expected, and loosely afterwards.
	closely, loosely = 10 * time.Millisecond, 100 * time.Millisecond
	// usually is how long a change takes, beyond what others are given to learn of it.
	usually = 20 * time.Second
	// handoverLife is longer than any node waits for the others (Patience of RotationLimits), and for the API besides.
	handoverLife = 15 * time.Minute
)

// Every returns how long to wait between looks; 0: none is needed.
func (h *Handovers) Every(now time.Time, peers []Peer) (every time.Duration) {
	for i := range peers {
		if !peers[i].succeeds() {
			h.ended(&peers[i])
			continue
		}
		switch age := h.age(now, &peers[i]); {
		case age < h.Learn+usually:
			every = closely
		case age < handoverLife && every == 0:
			every = loosely
		}
	}
	for node, b := range h.begun {
		if b.seen != now && now.Sub(b.at) >= handoverLife {
			delete(h.begun, node)
		}
	}
	return every
}

// ended forgets the change of a node's key that is the key by now.
func (h *Handovers) ended(p *Peer) {
	if b, known := h.begun[p.Node]; known && b.next == p.Key {
		delete(h.begun, p.Node)
	}
}

// age is for how long a node's key has been changing. Another next key begins that anew only after the life of the one before.
func (h *Handovers) age(now time.Time, p *Peer) time.Duration {
	b, known := h.begun[p.Node]
	if !known || b.next != p.Key && now.Sub(b.at) >= handoverLife {
		b = begun{next: p.Key, at: now}
	}
	if h.begun == nil {
		h.begun = map[string]begun{}
	}
	b.seen = now
	h.begun[p.Node] = b
	return now.Sub(b.at)
}
