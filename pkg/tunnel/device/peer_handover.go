// SPDX-License-Identifier: Apache-2.0

package device

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// handoverState is the part of a session that one device passes on to the next: the hello result, no key. Peer.mu guards it.
type handoverState struct {
	restored *HelloResult // from the previous device, until start uses it; nil for none
	ended    *HelloResult // of the session that stop has ended, for the next device
}

// saveState returns the state of a peer of a device that has ended.
func (p *Peer) saveState() PeerState {
	p.mu.Lock()
	defer p.mu.Unlock()
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

// saveHello returns the result of the hello exchange, nil without a session. The caller holds mu.
func (p *Peer) saveHello() *HelloResult {
	if p.engine.Current.Load() == nil && p.sessions.next == nil {
		return nil
	}
	x := &p.hello
	s := &HelloResult{Ropewalk: x.ropewalk, LocalAddr: x.localAddr, Heard: p.engine.Heard.Load(), Plan: x.plan}
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
	p.updatePathMTU(now) // packets may wait for the session
	if p.timers.HandshakeWanted(now) {
		p.sendInitiation(now)
		p.timers.retries, p.timers.retryAt = 0, now+retryIntervals[0]
	}
}

// retryIntervals are the times, in ns, that a resumed device waits for an answer before it repeats its initiation. After
// them the WireGuard timers take over. These retries are faster: traffic waits, the peer answered a moment ago, and under
// load the response may be dropped among messages for erased sessions. A response to an earlier initiation is no longer
// accepted, so the intervals grow. Stock peers accept one initiation in 50 ms.
var retryIntervals = [...]int64{
	int64(60 * time.Millisecond), int64(250 * time.Millisecond), int64(750 * time.Millisecond), int64(2 * time.Second),
}

// retryHandshake repeats the initiation of a resumed device when that is due. The caller holds mu.
func (p *Peer) retryHandshake(now int64) {
	t := &p.timers
	if t.retryAt == 0 || now < t.retryAt {
		return
	}
	t.retryAt = 0
	if p.handshake.attempt == nil {
		return // there is a session
	}
	p.sendInitiation(now)
	if t.retries++; t.retries < len(retryIntervals) {
		t.retryAt = now + retryIntervals[t.retries]
	}
}
