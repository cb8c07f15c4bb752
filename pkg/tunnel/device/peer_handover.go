// SPDX-License-Identifier: Apache-2.0

package device

import (
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// handoverState is the part of a session that one device passes on to the next: the hello result, no key. Peer.mu guards it.
type handoverState struct {
	restored *HelloResult // from the previous device, until start uses it; nil for none
	ended    *HelloResult // of the session that stop has ended, for the next device
	lostAt   int64        // when this side lost a session with which the peer may still send, 0 for never; start renews it
}

// snapshot returns the state of a peer of a running device, without its session. A peer with live state counts as changed.
func (p *Peer) snapshot() PeerState {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hasLiveState() {
		p.noteChange()
	}
	s := p.currentState()
	s.Hello = nil
	return s
}

// hasLiveState reports whether the peer has state beyond PeerState, or a task waits. The caller holds mu.
func (p *Peer) hasLiveState() bool {
	return p.hasSession() || p.handshake.attempt != nil || p.timers.timer != nil || p.handover.restored != nil || p.requests.tasks.Load() != 0 ||
		p.hasStaged() || p.dev.renewals.concerns(p)
}

// saveState returns the state of a peer of a device that has ended.
func (p *Peer) saveState() PeerState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.currentState()
}

// currentState returns the peer's state; its session is the one that has ended. The caller holds mu.
func (p *Peer) currentState() PeerState {
	h := &p.handshake
	s := PeerState{
		PublicKey: p.key, Name: p.nameText(), PresharedKey: Secret(h.psk), Keepalive: p.timers.keepalive,
		AllowedIPs: p.dev.engine.Routes.Prefixes(p.engine), LastHandshake: h.completedAt, Traffic: p.engine.Totals(),
		LastAccepted: Timestamp(h.lastAccepted), LastSent: Timestamp(h.lastSent), LastAcceptedAt: h.lastAcceptedAt, Hello: p.handover.ended,
		PathMTU: p.savedPathMTU(),
	}
	if to := p.engine.Endpoint.Load(); to != nil {
		s.Endpoint, s.Scope, s.Source = to.Dst, to.Scope, to.Src
	}
	s.EndpointName = p.endpointName()
	return s
}

// saveHello returns the result of the hello exchange, nil if there is no session and none that is being renewed. The caller holds mu.
func (p *Peer) saveHello() *HelloResult {
	if !p.hasSession() && !p.dev.renewals.concerns(p) {
		return nil
	}
	x := &p.hello
	s := &HelloResult{Ropewalk: x.ropewalk, LocalAddr: x.localAddr, Heard: p.engine.Heard.Load(), Plan: x.plan, Blocked: p.path.spread.Blocked}
	if x.known && x.nat == nil {
		s.Hello = wire.AppendHello(nil, &x.remote)
	}
	return s
}

// restore restores the state of one peer for Device.Resume.
func (p *Peer) restore(s *PeerState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.Endpoint.IsValid() {
		p.engine.Endpoint.Store(&underlay.Endpoint{Dst: s.Endpoint, Scope: s.Scope, Src: s.Source})
	}
	p.configureEndpointName(s.EndpointName, s.Endpoint)
	p.engine.Resume(s.Traffic)
	h := &p.handshake
	h.completedAt, h.lastAcceptedAt = s.LastHandshake, s.LastAcceptedAt
	h.lastAccepted, h.lastSent = noise.Timestamp(s.LastAccepted), noise.Timestamp(s.LastSent)
	h.clock.Resume(h.lastSent)
	p.handover.restored = s.Hello
	p.restorePathMTU(int(s.PathMTU))
}

// resumeHello restores the result of the hello exchange and starts a handshake, if the previous device had a session. The
// caller holds mu.
func (p *Peer) resumeHello(now int64) {
	s := p.handover.restored
	if p.handover.restored = nil; s == nil {
		return
	}
	x := &p.hello
	if len(s.Hello) > 0 && wire.ParseHello(s.Hello, &x.remote) == nil {
		x.known = true
	}
	x.ropewalk, x.localAddr, x.plan = s.Ropewalk, s.LocalAddr, s.Plan
	if to := p.engine.Endpoint.Load(); to != nil && len(s.Plan) > 0 {
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
