// SPDX-License-Identifier: Apache-2.0

package device

import (
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// guardRef boxes the interface for atomic.Pointer.
type guardRef struct{ underlay.Guard }

// resetGuard tells a port that has just been opened, nil for none, who our peers are, if it asks for that. Handshakes may go on
// meanwhile: whoever binds an index after the pointer was stored tells the port by itself. The caller holds mu.
func (d *Device) resetGuard(port underlay.Port) {
	g, ok := port.(underlay.Guard)
	if !ok {
		d.guard.Store(nil)
	} else {
		d.guard.Store(&guardRef{g})
	}
	for _, p := range d.peers {
		p.mu.Lock()
		p.guarded = netip.Addr{} // that was another port's
		for _, b := range append(p.sessions.all(), p.attempt) {
			if b != nil {
				d.admitIndex(b.index)
			}
		}
		p.updateGuard()
		p.mu.Unlock()
	}
	if ok {
		g.SetGuarded()
	}
}

// admitIndex lets in what is for a receiver index of ours; refuseIndex undoes it.
func (d *Device) admitIndex(index uint32) {
	if g := d.guard.Load(); g != nil {
		g.AddIndex(index)
	}
}

func (d *Device) refuseIndex(index uint32) {
	if g := d.guard.Load(); g != nil {
		g.RemoveIndex(index)
	}
}

// updateGuard makes where the peer is now a known source, in place of where it was. The caller holds mu.
func (p *Peer) updateGuard() {
	var now netip.Addr
	if to := p.engine.Endpoint.Load(); to != nil {
		now = to.Dst.Addr()
	}
	p.setGuardedAddr(now)
}

// setGuardedAddr does so for an address; the zero one is none. The caller holds mu.
func (p *Peer) setGuardedAddr(now netip.Addr) {
	g := p.dev.guard.Load()
	if g == nil || now == p.guarded {
		return
	}
	if now.IsValid() {
		g.AddSource(now)
	}
	if p.guarded.IsValid() {
		g.RemoveSource(p.guarded)
	}
	p.guarded = now
}
