// SPDX-License-Identifier: Apache-2.0

package device

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// changedPeers is the set of peers whose state may differ from a Snapshot, so that Leave need not look at all peers. A peer that is not in it
// has no session, no handshake in flight, no timer and no staged packets, and none of what PeerState holds has changed.
//
// Code that changes one of these calls Peer.noteChange: afterwards if it does not hold Peer.mu, else at any time while it holds it. Snapshot
// begins to track before it reads the first peer, so no change is lost.
type changedPeers struct {
	tracking atomic.Bool // from Snapshot to DiscardSnapshot

	mu  sync.Mutex // taken after Peer.mu
	set map[*Peer]struct{}
}

// begin begins with an empty set.
func (c *changedPeers) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set = map[*Peer]struct{}{}
	c.tracking.Store(true)
}

func (c *changedPeers) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tracking.Store(false)
	c.set = nil
}

// list returns the set in no order.
func (c *changedPeers) list() []*Peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.set))
}

// noteChange adds the peer to the changed ones. It costs one load unless there is a snapshot.
func (p *Peer) noteChange() {
	c := &p.dev.changed
	if !c.tracking.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.set != nil {
		c.set[p] = struct{}{}
	}
}

// activePeers returns the peers that may have a session, a timer or staged packets. The caller holds mu.
func (d *Device) activePeers() []*Peer {
	if d.handingOver && d.changed.tracking.Load() {
		return d.changed.list()
	}
	return slices.Collect(maps.Values(d.peers))
}
