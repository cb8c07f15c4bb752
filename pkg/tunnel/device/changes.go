// SPDX-License-Identifier: Apache-2.0

package device

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// changedPeers is the set of peers whose PeerState may have changed since it was last returned for a handover, so that Leave need not look at
// all peers. A worker that has handled a peer counts as a change, whatever it did. Packets do not.
//
// Code that changes what PeerState holds calls Peer.noteChange: afterwards if it does not hold Peer.mu, else at any time while it holds it.
// Snapshot begins to track before it reads the first peer, and take empties the set before the peers are read, so no change is lost.
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

// take returns the set in no order, and empties it.
func (c *changedPeers) take() []*Peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := slices.Collect(maps.Keys(c.set))
	clear(c.set)
	return list
}

// len returns the size of the set.
func (c *changedPeers) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.set)
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
