// SPDX-License-Identifier: Apache-2.0

package device

import "github.com/ropewalk/ropewalk/pkg/netio/underlay"

// UsesScope reports whether the endpoint of a peer is a link-local address on the link with this index. It is safe for concurrent use.
func (d *Device) UsesScope(index uint32) bool {
	d.peersMu.RLock()
	defer d.peersMu.RUnlock()
	for _, p := range d.peers {
		if to := p.engine.Endpoint.Load(); to != nil && to.Scope == index {
			return true
		}
	}
	return false
}

// MoveScope moves the endpoints on a link to another index, which the link has got since it was deleted and created again. It is safe for
// concurrent use.
func (d *Device) MoveScope(from, to uint32) {
	d.peersMu.RLock()
	defer d.peersMu.RUnlock()
	for _, p := range d.peers {
		p.moveScope(from, to)
	}
}

func (p *Peer) moveScope(from, to uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.path.name; n != nil {
		for i := range n.known {
			if n.known[i].Scope == from {
				n.known[i].Scope = to
			}
		}
	}
	before := p.engine.Endpoint.Load()
	if before == nil || before.Scope != from || !p.engine.Endpoint.CompareAndSwap(before, &underlay.Endpoint{Dst: before.Dst, Scope: to}) {
		return // the peer has just moved
	}
	p.noteChange()
	p.requestRoute()
	if p.running {
		p.updateGuard()
	}
}
