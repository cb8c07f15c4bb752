// SPDX-License-Identifier: Apache-2.0

package device

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/admission"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/hello"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
)

// recipients implements admission.Recipients.
type recipients struct{ *Device }

func (d recipients) Awaits(index uint32, now int64) bool {
	p := d.peers.byIndex(index)
	return p != nil && p.handshake.replies.Allow(now, time.Second)
}

// hasUnknownIndex reports whether a message is a response or cookie reply to a receiver index that is not ours. No worker wakes for it.
func (in *inbound) hasUnknownIndex(msg []byte) bool {
	kind, reason := wire.Classify(msg)
	return reason == drop.None && kind != wire.TypeInitiation && kind != wire.TypeData && in.dev.peers.byIndex(wire.ReceiverIndex(msg)) == nil
}

// take handles a message from a queue.
func (in *inbound) take(m *admission.Message) drop.Reason {
	in.gate.Take(m)
	defer in.gate.Done(m)
	return in.handle(m)
}

// refusal is why a handshake message was refused, and the public key of its sender if that is known (config.PeerHandshake).
type refusal struct {
	reason config.Refusal
	key    string
}

// refusals bounds the log messages about rejected handshakes, since anybody can send those.
type refusals struct {
	rate       pace.Rate
	noted      pace.Rate     // searches for the peer of an endpoint
	suppressed atomic.Uint64 // rejected without a log message since the last one
}

// refuseStranger rejects a handshake message of an unknown sender, and notes that at the peers that have its address as their endpoint.
// For key see logRefusal. The caller holds no lock.
func (in *inbound) refuseStranger(reason drop.Reason, from underlay.Endpoint, key noise.PublicKey) drop.Reason {
	if in.refusals.noted.Allow(in.dev.clock(), time.Minute) { // the search takes time, and anybody can send such messages
		r := refusal{reason: config.RefusedMAC1}
		if !key.IsZero() {
			r = refusal{config.RefusedKey, key.Base64()}
		}
		in.noteRefusal(from.Dst, r)
	}
	return in.logRefusal(reason, from, key)
}

// noteRefusal stores a refusal at the peers with that endpoint.
func (in *inbound) noteRefusal(from netip.AddrPort, r refusal) {
	d := in.dev
	d.peers.mu.RLock()
	defer d.peers.mu.RUnlock()
	for _, p := range d.peers.list {
		if to := p.engine.Endpoint.Load(); to == nil || to.Dst != from {
			continue
		}
		p.mu.Lock()
		p.handshake.refused = r
		p.mu.Unlock()
	}
}

// logRefusal logs a rejected handshake message, at a limited rate, and returns the reason. key is the sender's public key,
// which may not be authentic; zero if unknown.
func (in *inbound) logRefusal(reason drop.Reason, from underlay.Endpoint, key noise.PublicKey) drop.Reason {
	d := in.dev
	if !in.refusals.rate.Allow(d.clock(), time.Minute) {
		in.refusals.suppressed.Add(1)
		return reason
	}
	log := d.log
	if !key.IsZero() {
		log = log.With("peer", key)
	}
	if n := in.refusals.suppressed.Swap(0); n > 0 {
		log = log.With("suppressed", n)
	}
	log.Info("handshake message refused and dropped", "reason", reason.String(), "endpoint", from.Dst)
	return reason
}

// identity is the device's static key pair and the checker of cookies and MACs for it.
type identity struct {
	*noise.Identity
	checker *noise.CookieChecker
}

// inbound handles the handshake messages that arrive. It is safe for concurrent use.
type inbound struct {
	dev      *Device
	gate     admission.Gate
	refusals refusals
}

// handle handles a handshake or cookie message from the underlay.
func (in *inbound) handle(m *admission.Message) drop.Reason {
	d := in.dev
	msg := m.Bytes()
	kind, reason := wire.Classify(msg)
	if reason != drop.None {
		return reason
	}
	id := d.identity.Load()
	if id == nil {
		return drop.HSInvalid
	}
	if kind == wire.TypeCookieReply {
		return in.handleCookieReply(msg)
	}
	switch reason = in.gate.Admit(m, id.checker, d.clock()); reason {
	case drop.None:
	case drop.HSBadMAC1:
		return in.refuseStranger(reason, m.From, noise.PublicKey{})
	case drop.HSNoCookie:
		in.sendCookie(id, msg, m.From)
		return reason
	default:
		return reason
	}
	noise.Secretly(func() {
		if kind == wire.TypeInitiation {
			reason = in.handleInitiation(id, msg, m.From)
		} else {
			reason = in.handleResponse(msg, m.From)
		}
	})
	return reason
}

func (in *inbound) sendCookie(id *identity, msg []byte, from underlay.Endpoint) {
	d := in.dev
	var reply wire.CookieReply
	if err := id.checker.CreateReply(&reply, msg, from.Dst, d.clock(), d.cfg.Rand); err != nil {
		d.log.Error("creating a cookie reply failed, dropping the handshake message: the initiator retries in 5 seconds", "endpoint", from.Dst, "error", err)
		return
	}
	reason, _ := d.outer.send(&from, func(port underlay.Port) error { // without the DSCP of handshakes: anybody can ask for cookies
		return port.SendRun(&underlay.Run{To: &from, Parts: [][]byte{reply[:]}, SegSize: len(reply), Segments: 1})
	})
	d.engine.SlowDrops.Add(reason, 1)
}

// handleCookieReply stores the cookie for the peer whose message the reply answers. A cookie reply proves nothing about the
// peer's address, so it never changes the endpoint.
func (in *inbound) handleCookieReply(msg []byte) drop.Reason {
	d := in.dev
	p := d.peers.byIndex(wire.ReceiverIndex(msg))
	if p == nil {
		return drop.RXUnknownIndex
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running || p.handshake.cookies == nil {
		return drop.HSBadCookie
	}
	return p.handshake.cookies.ConsumeReply(msg, d.clock())
}

// handleInitiation answers the initiation of a known peer and derives the session keys. They stay unconfirmed until the
// peer uses them.
func (in *inbound) handleInitiation(id *identity, msg []byte, from underlay.Endpoint) drop.Reason {
	d := in.dev
	r := noise.NewResponder(id.Identity)
	defer r.Wipe()
	key, reason := r.ConsumeInitiation(msg)
	if reason != drop.None {
		return reason
	}
	p := d.peers.lookup(key)
	if p == nil {
		return in.refuseStranger(drop.HSUnknownPeer, from, key)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isUp() {
		return drop.RXDown
	}
	now := d.clock()
	timestamp, reason := p.handshake.accept(r, now)
	if reason != drop.None {
		return in.logRefusal(reason, from, key)
	}
	named, signed := p.quantum.machine.Load().NamedBy(timestamp, &p.handshake.psk, p.hello.exchange.Ropewalk)
	if !signed {
		p.hello.queue.Discard()
		p.hello.reset(hello.ErrNoHello)
	}
	p.handshake.noteMessage(len(msg), from, now)
	if p.handshake.attempt != nil && signed && p.handshake.yieldsCrossing(id) {
		p.handshake.endAttempt()
	}
	p.handshake.respond(r, named, signed, now)
	return drop.None
}

// handleResponse completes a handshake that we initiated.
func (in *inbound) handleResponse(msg []byte, from underlay.Endpoint) drop.Reason {
	d := in.dev
	index := wire.ReceiverIndex(msg)
	p := d.peers.byIndex(index)
	if p == nil {
		return drop.RXUnknownIndex
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running || p.handshake.attempt == nil || p.handshake.attempt.index != index {
		return drop.HSInvalid
	}
	r, reason := p.quantum.machine.Load().ConsumeResponse(p.handshake.initiator, msg, &p.handshake.psk)
	defer r.Keys.Wipe()
	if reason != drop.None {
		p.handshake.refused = refusal{reason: config.RefusedResponse}
		return in.logRefusal(reason, from, p.key)
	}
	now := d.clock()
	b := p.handshake.attempt
	p.handshake.attempt = nil
	var err error
	if b.keys, err = session.NewKeypair(&r.Keys, now); err != nil {
		d.log.Error("deriving session keys failed, dropping the handshake response: this side retries in 5 seconds", "peer", p.key, "error", err)
		p.sessions.release(b)
		return drop.HSInvalid
	}
	p.handshake.bindExchange(b, &r.Keys, r.Key)
	p.handshake.noteMessage(len(msg), from, now)
	p.timers.SessionDerived(now)
	p.dev.counts.handshakes.completed.Add(1)
	p.handshake.complete(b, now)
	staged := p.staged.has()
	p.sessions.establish(b, true)
	if !staged || b.keys.Restricted() {
		// The responder may not send before we have used the keys.
		p.dev.engine.SendKeepalive(p.engine, b.keys)
	}
	p.hello.sessionInitiated(now)
	if r.Fallback { // the peer may take this side for a stock one: it has not got the key by which to tell
		p.dev.counts.quantum.fallbacks.Add(1)
		p.hello.query(now)
	}
	p.quantum.request()
	p.armTimer(now)
	return drop.None
}
