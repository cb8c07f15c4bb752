// SPDX-License-Identifier: Apache-2.0

package device

import (
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// handoverState is the part of a session that one device passes on to the next: the hello result, no key. Peer.mu guards it.
type handoverState struct {
	restored *HelloResult // from the previous device, until start uses it; nil for none
	lostAt   int64        // when this side lost a session with which the peer may still send, 0 for never; start renews it
}

// saveState returns the peer's state. A peer that does not run has no session, but may have the result that it got from the previous device.
func (p *Peer) saveState() PeerState {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := &p.handshake
	s := PeerState{
		PublicKey: p.key, Name: p.nameText(), PresharedKey: Secret(h.psk), Keepalive: p.timers.keepalive,
		AllowedIPs: p.dev.engine.Routes.Prefixes(p.engine), LastHandshake: h.completedAt,
		LastAccepted: Timestamp(h.lastAccepted), LastSent: Timestamp(h.lastSent), LastAcceptedAt: h.lastAcceptedAt, Hello: p.handover.restored,
		PathMTU: p.savedPathMTU(), PostQuantum: p.quantum.own, Exchanges: p.quantum.save(),
	}
	if p.running {
		s.Hello = p.saveHello()
	}
	if to := p.engine.Endpoint.Load(); to != nil {
		s.Endpoint, s.Scope, s.Source = to.Dst, to.Scope, to.Src
	}
	s.EndpointName = p.endpointName()
	return s
}

// saveHello returns the result of the hello exchange, nil if there is no session and none that is being renewed. The caller holds mu.
func (p *Peer) saveHello() *HelloResult {
	if !p.hasSession() && !p.dev.renewals.Concerns(p) {
		return nil
	}
	x := &p.hello
	s := &HelloResult{Ropewalk: x.ropewalk, LocalAddr: x.localAddr, Heard: p.engine.Heard.Load(), Plan: x.plan, Blocked: p.path.spread.Blocked}
	if x.remote != noHello && x.nat == nil {
		s.Hello = wire.AppendHello(nil, x.remote)
	}
	return s
}

// restore restores the state of one peer for Device.Resume and Update.
func (p *Peer) restore(s *PeerState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.Endpoint.IsValid() {
		p.engine.Endpoint.Store(&underlay.Endpoint{Dst: s.Endpoint, Scope: s.Scope, Src: s.Source})
	}
	p.configureEndpointName(s.EndpointName, config.Endpoint{AddrPort: s.Endpoint, Scope: s.Scope})
	h := &p.handshake
	h.completedAt, h.lastAcceptedAt = s.LastHandshake, s.LastAcceptedAt
	h.lastAccepted, h.lastSent = noise.Timestamp(s.LastAccepted), noise.Timestamp(s.LastSent)
	h.clock.Resume(h.lastSent)
	p.handover.restored = s.Hello
	p.quantum.restore(s.Exchanges)
	if s.PathMTU > 0 || p.probing.Prober != nil { // the next search begins with it
		p.probing.get().Resume(int(s.PathMTU))
	}
}

// resumeHello restores the result of the hello exchange and starts a handshake, if the previous device had a session. The
// caller holds mu.
func (p *Peer) resumeHello(now int64) {
	s := p.handover.restored
	if p.handover.restored = nil; s == nil {
		return
	}
	x := &p.hello
	if h := new(wire.Hello); len(s.Hello) > 0 && wire.ParseHello(s.Hello, h) == nil {
		x.remote = h
		p.quantum.machine.Load().SetOffers(x.offers())
	}
	x.ropewalk, x.localAddr, x.plan = s.Ropewalk, s.LocalAddr, s.Plan
	if to := p.engine.Endpoint.Load(); to != nil && len(s.Plan) > 0 {
		p.path.proven = to.Dst.Addr()
		p.dev.selection.plan(p, to.Dst.Addr(), s.Plan)
	}
	p.updateGathered()
	p.engine.Heard.Store(s.Heard)
	p.updateSpread()
	p.resumeBlocked(s.Blocked)
	p.updatePathMTU(now) // packets may wait for the session
	if p.timers.HandshakeWanted(now) {
		p.renew(now)
	}
}
