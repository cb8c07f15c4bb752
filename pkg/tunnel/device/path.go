// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// pathState is the state of the path to a peer. The endpoint itself is in engine.Peer, since lanes read it. Peer.mu guards
// all fields but roamLog.
type pathState struct {
	guarded       netip.AddrPort    // the peer's endpoint as the port's guard knows it; the zero AddrPort for none
	sourcesOpened int               // sources that were opened for the peer's port plans
	spread        config.PeerSpread // the spread that lanes use now
	spreadLog     rate
	roamLog       rate
}

// moveEndpoint sets the peer's endpoint. It needs no lock.
func (p *Peer) moveEndpoint(to underlay.Endpoint) {
	old := p.engine.Endpoint.Swap(&to)
	if old == nil || old.Dst != to.Dst {
		level := slog.LevelInfo
		if old == nil || !p.path.roamLog.allow(p.dev.clock(), time.Minute) { // the first endpoint, or too many changes
			level = slog.LevelDebug
		}
		p.dev.log.Log(context.Background(), level, "peer roamed", "peer", p.key, "endpoint", to.Dst)
	}
	if old != nil && old.Dst != to.Dst {
		p.post(taskRoamed)
	}
}

// RoutesChanged clears the local address on which each peer last reached us: the address may be gone, or no longer the best.
// Routing chooses one until the peer is heard from again. Call it when the host's routes, addresses or links changed.
func (d *Device) RoutesChanged() {
	d.peersMu.RLock()
	defer d.peersMu.RUnlock()
	for _, p := range d.peers {
		p.clearSource()
	}
}

// clearSource lets routing choose the local address again: the present one may be why the peer does not answer.
func (p *Peer) clearSource() {
	if to := p.engine.Endpoint.Load(); to != nil && to.Src.IsValid() {
		p.engine.Endpoint.CompareAndSwap(to, &underlay.Endpoint{Dst: to.Dst, Scope: to.Scope})
	}
}

// guardRef boxes the interface for atomic.Pointer.
type guardRef struct{ underlay.Guard }

// admitIndex adds a local receiver index to the guard. refuseIndex removes it.
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

// updateGuard replaces the peer's endpoint in the guard by the present one. The caller holds mu.
func (p *Peer) updateGuard() {
	var now netip.AddrPort
	if to := p.engine.Endpoint.Load(); to != nil {
		now = to.Dst
	}
	p.setGuarded(now)
}

// setGuarded replaces the peer's endpoint in the guard; the zero AddrPort is none. The caller holds mu.
func (p *Peer) setGuarded(now netip.AddrPort) {
	g := p.dev.guard.Load()
	if g == nil || now == p.path.guarded {
		return
	}
	if now.IsValid() {
		g.AddSource(now)
	}
	if p.path.guarded.IsValid() {
		g.RemoveSource(p.path.guarded)
	}
	p.path.guarded = now
}
