// SPDX-License-Identifier: Apache-2.0

package device

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
)

// echoState counts the probes that ProbePeer sends. Peer.mu guards it.
type echoState struct {
	sent, answered uint64
	id             uint32 // of the last one; a search for the path MTU counts from 1 and never gets there
	sentAt         int64  // 0 if it was answered
	rtt            int64  // in ns, of the last answered one
}

// echoID is set in the ID of the probes that ProbePeer sends.
const echoID = 1 << 31

// echoWait is the time in ns to wait for an answer before another probe is sent. Callers call more often than that: a probe for each call would
// replace the one whose answer is still on its way back.
const echoWait = int64(time.Second)

// ProbePeer tests the path to a peer with a message that the peer answers: an initiation if there is no session and none was sent lately, and else a probe if
// the peer answers probes and none is under way. It does not wait for the answer: a later call reports it. ok is false if there is no such
// peer.
func (d *Device) ProbePeer(key noise.PublicKey) (report config.PeerProbe, ok bool) {
	p := d.lookup(key)
	if p == nil {
		return config.PeerProbe{}, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now, keys := d.clock(), p.engine.Current.Load()
	r := config.PeerProbe{
		Up: p.running, Session: keys.Usable(now),
		Echoes: p.hello.remote.Probes && d.spreading.Load().mode != config.SpreadOff,
	}
	switch {
	case r.Up && r.Session && r.Echoes:
		p.sendEcho(keys, now)
	case r.Up && !r.Session:
		p.initiate(now)
		p.armTimer(now)
	}
	r.Handshake, r.Reflected = p.reportHandshake(), p.reflections.answered.Load()
	if e := p.echo; e != nil {
		r.Sent, r.Answered, r.RTT = e.sent, e.answered, time.Duration(e.rtt)
	}
	return r, true
}

// sendEcho sends a probe of the minimum size, unless one is under way. The caller holds mu.
func (p *Peer) sendEcho(keys *session.Keypair, now int64) {
	if p.echo == nil {
		p.echo = &echoState{}
	}
	e := p.echo
	if e.sentAt != 0 && now-e.sentAt < echoWait {
		return
	}
	e.sent++
	e.id, e.sentAt = echoID|uint32(e.sent), now
	p.sendControl(keys, 0, wire.AppendProbe(nil, &wire.Probe{ID: e.id, Size: echoSize}))
}

// echoSize is the size of a probe with WireGuard's padding.
const echoSize = wire.PaddingMultiple

// echoed takes the answer to the last probe of ProbePeer, and reports whether m is one. The caller holds mu.
func (p *Peer) echoed(m *wire.Probe, now int64) bool {
	e := p.echo
	if e != nil && e.sentAt != 0 && m.ID == e.id {
		e.answered++
		e.rtt, e.sentAt = now-e.sentAt, 0
	}
	return m.ID&echoID != 0
}

// reflections limits and counts the requests of a peer that a reflector answers. It is safe for concurrent use.
type reflections struct {
	rate     pace.Rate
	answered atomic.Uint64
}

// AdmitReflection reports whether a reflector answers a request that came through the tunnel: its source is an allowed IP of a peer, and the peer
// has sent fewer than eight others in this second. Then isLocal reports whether it is an address of this host, which gets no answer.
func (d *Device) AdmitReflection(from netip.Addr, isLocal func(netip.Addr) bool) bool {
	e, ok := d.engine.Routes.Lookup(from)
	if !ok {
		return false
	}
	p, ok := e.SlowPath.(*Peer)
	if !ok || !p.reflections.rate.Allow(d.clock(), time.Second) || isLocal(from) {
		return false
	}
	p.reflections.answered.Add(1)
	return true
}
