// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/noise"
	"github.com/ropewalk/ropewalk/pkg/peer"
	"github.com/ropewalk/ropewalk/pkg/session"
	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

// identity is who the device is: its key pair, and what it checks incoming handshakes with.
type identity struct {
	*noise.Identity
	checker *noise.CookieChecker
}

// init handles a handshake or cookie message from the underlay.
func (d *Device) handleHandshake(msg []byte, from underlay.Endpoint) drop.Reason {
	kind, reason := wire.Classify(msg)
	if reason != drop.None {
		return reason
	}
	id := d.identity.Load()
	if id == nil {
		return drop.HSInvalid
	}
	if kind == wire.TypeCookieReply {
		return d.handleCookieReply(msg)
	}
	if reason := d.admit(id, msg, from); reason != drop.None {
		return reason
	}
	if kind == wire.TypeInitiation {
		return d.handleInitiation(id, msg, from)
	}
	return d.handleResponse(msg, from)
}

// admit decides whether a handshake message is worth its Diffie-Hellman: mac1 always, and under load a cookie and a
// rate per source address (WireGuard paper §5.3).
func (d *Device) admit(id *identity, msg []byte, from underlay.Endpoint) drop.Reason {
	now := d.clock()
	mac1, mac2 := id.checker.Check(msg, from.Dst, now)
	switch {
	case !mac1:
		return d.logRefusal(drop.HSBadMAC1, from, noise.PublicKey{})
	case !d.handshakes.underLoad(now):
		return drop.None
	case !mac2:
		d.sendCookie(id, msg, from)
		return drop.HSNoCookie
	case !d.limiter.Allow(now, from.Dst.Addr()):
		return drop.HSRateLimited
	}
	return drop.None
}

func (d *Device) sendCookie(id *identity, msg []byte, from underlay.Endpoint) {
	var reply wire.CookieReply
	if err := id.checker.CreateReply(&reply, msg, from.Dst, d.clock(), d.cfg.Rand); err != nil {
		d.log.Error("creating a cookie reply", "error", err)
		return
	}
	d.engine.SlowDrops.Add(d.send(&from, reply[:]), 1)
}

// send sends one slow-path message.
func (d *Device) send(to *underlay.Endpoint, msg []byte) drop.Reason {
	port := d.port.Load()
	if port == nil {
		return drop.TXDown
	}
	if err := port.SendTo(to, msg); err != nil {
		d.log.Debug("sending a handshake message", "endpoint", to.Dst, "error", err)
		return drop.TXSendError
	}
	return drop.None
}

// handleCookieReply gives a cookie to the peer whose message it answers. It proves nothing about where the peer is, so it
// never changes the endpoint.
func (d *Device) handleCookieReply(msg []byte) drop.Reason {
	p := d.byIndex(wire.ReceiverIndex(msg))
	if p == nil {
		return drop.RXUnknownIndex
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running || p.jar == nil {
		return drop.HSBadCookie
	}
	return p.jar.ConsumeReply(msg, d.clock())
}

// byIndex returns the peer that a receiver index of ours belongs to, or nil.
func (d *Device) byIndex(index uint32) *Peer {
	s, ok := d.engine.Sessions.Lookup(index)
	if !ok {
		return nil
	}
	return s.Peer.SlowPath.(*Peer)
}

// handleInitiation answers an initiation of a known peer and derives the session's keys, which stay unconfirmed until
// the peer uses them.
func (d *Device) handleInitiation(id *identity, msg []byte, from underlay.Endpoint) drop.Reason {
	r := noise.NewResponder(id.Identity)
	defer r.Wipe()
	key, reason := r.ConsumeInitiation(msg)
	if reason != drop.None {
		return reason
	}
	p := d.lookup(key)
	if p == nil {
		return d.logRefusal(drop.HSUnknownPeer, from, key)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running {
		return drop.RXDown
	}
	now := d.clock()
	signed, reason := p.acceptInitiation(r, now)
	if reason != drop.None {
		return d.logRefusal(reason, from, key)
	}
	if !signed {
		p.forgetHello(errNoHello)
	}
	p.noteHandshakeMessage(len(msg), from, now)
	if p.attempt != nil && p.yieldsCrossing(id) {
		p.endAttempt()
	}
	p.respond(r, signed, now)
	return drop.None
}

// yieldsCrossing tells which of two handshakes that crossed is given up: that of the side whose public key is the larger. Stock
// devices give up theirs on both sides and try again 5 s later; with one that does, ours goes through.
func (p *Peer) yieldsCrossing(id *identity) bool {
	ours := id.Public()
	return bytes.Compare(p.key[:], ours[:]) < 0
}

// acceptInitiation authenticates the initiation in r and refuses one that was seen before or comes too soon. It tells whether the
// peer has signed it as a ropewalk.
func (p *Peer) acceptInitiation(r *noise.Responder, now int64) (signed bool, reason drop.Reason) {
	timestamp, reason := r.Authenticate(p.remote)
	switch {
	case reason != drop.None:
		return false, reason
	case !timestamp.After(p.greatest):
		return false, drop.HSReplay
	case p.lastConsumed != 0 && now-p.lastConsumed < peer.HandshakeInitiationRate:
		return false, drop.HSFlood
	}
	p.greatest, p.lastConsumed = timestamp, now
	return timestamp.IsSigned(), drop.None
}

// respond sends the response to the initiation in r. The caller holds mu.
func (p *Peer) respond(r *noise.Responder, signed bool, now int64) {
	var msg wire.Response
	b, err := p.createResponse(r, &msg, now)
	if err != nil {
		p.dev.log.Error("creating a response", "peer", p.key, "error", err)
		p.releaseIndex(b)
		return
	}
	b.signed = signed
	p.establish(b, false)
	p.timers.ResponseSent(now)
	p.sendHandshake(msg[:], now)
	p.arm(now)
	p.dev.handshakeCounts.answered.Add(1)
	p.dev.log.Debug("handshake answered", "peer", p.key, "endpoint", p.engine.Endpoint.Load().Dst)
}

// createResponse writes the response and returns the session it stands for; on error, what there is of it.
func (p *Peer) createResponse(r *noise.Responder, msg *wire.Response, now int64) (*keyBinding, error) {
	b, err := p.reserveIndex()
	if err != nil {
		return nil, err
	}
	keys, err := r.CreateResponse(msg, b.index, &p.psk, p.dev.cfg.Rand)
	defer keys.Wipe()
	if err != nil {
		return b, err
	}
	if b.keys, err = session.NewKeypair(&keys, now); err != nil {
		return b, err
	}
	return b, p.cookieJar().AddMACs(msg[:], now)
}

// cookieJar is what the peer has given us. The caller holds mu.
func (p *Peer) cookieJar() *noise.CookieJar {
	if p.jar == nil {
		p.jar = noise.NewCookieJar(p.remote)
	}
	return p.jar
}

// handleResponse completes a handshake of ours.
func (d *Device) handleResponse(msg []byte, from underlay.Endpoint) drop.Reason {
	index := wire.ReceiverIndex(msg)
	p := d.byIndex(index)
	if p == nil {
		return drop.RXUnknownIndex
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running || p.attempt == nil || p.attempt.index != index {
		return drop.HSInvalid
	}
	keys, reason := p.initiator.ConsumeResponse(msg, &p.psk)
	defer keys.Wipe()
	if reason != drop.None {
		return d.logRefusal(reason, from, p.key)
	}
	now := d.clock()
	b := p.attempt
	p.attempt = nil
	var err error
	if b.keys, err = session.NewKeypair(&keys, now); err != nil {
		d.log.Error("completing a handshake", "peer", p.key, "error", err)
		p.releaseIndex(b)
		return drop.HSInvalid
	}
	p.noteHandshakeMessage(len(msg), from, now)
	p.timers.SessionDerived(now)
	p.dev.handshakeCounts.completed.Add(1)
	p.handshakeComplete(now)
	staged := len(p.staged.trains) > 0
	p.establish(b, true)
	if !staged {
		// The responder may not send before it has seen us use the keys.
		p.dev.engine.SendKeepalive(p.engine, b.keys)
	}
	p.initiated(now)
	p.arm(now)
	return drop.None
}

// noteHandshakeMessage notes an authenticated handshake message of n bytes. The caller holds mu.
func (p *Peer) noteHandshakeMessage(n int, from underlay.Endpoint, now int64) {
	if to := p.engine.Endpoint.Load(); to == nil || *to != from {
		p.Roam(from)
		p.updateGuard()
	}
	p.engine.CountHandshake(n, 0)
	p.engine.Activity.Received(now, false)
}

// handshakeComplete notes that both sides have a session, and that no other handshake is needed. The caller holds mu.
func (p *Peer) handshakeComplete(now int64) {
	p.endAttempt()
	p.timers.HandshakeComplete(now)
	level := slog.LevelDebug // every two minutes from then on
	if p.lastHandshake.IsZero() {
		level = slog.LevelInfo
	}
	p.lastHandshake = p.dev.cfg.Wall()
	p.dev.log.Log(context.Background(), level, "handshake complete", "peer", p.key, "endpoint", p.engine.Endpoint.Load().Dst)
}

// sendHandshake sends a handshake message to where the peer is. The caller holds mu.
func (p *Peer) sendHandshake(msg []byte, now int64) {
	to := p.engine.Endpoint.Load()
	if to == nil {
		p.dropForPeer(drop.TXNoEndpoint, 1)
		return
	}
	p.engine.Activity.Sent(now, false) // before the answer can be there
	if why := p.dev.send(to, msg); why != drop.None {
		p.dropForPeer(why, 1)
		return
	}
	p.engine.CountHandshake(0, len(msg))
}

// initiate starts a handshake unless one is under way or was started too recently. In the latter case what is staged
// must not wait for the next packet to ask. The caller holds mu.
func (p *Peer) initiate(now int64) {
	if p.timers.HandshakeWanted(now) {
		p.sendInitiation(now)
	} else if p.attempt == nil && len(p.staged.trains) > 0 {
		p.askAgainAt = now + peer.RekeyTimeout
	}
}

// initiateDeferred is initiate for what has been staged since a handshake was started too recently. The caller holds mu.
func (p *Peer) initiateDeferred(now int64) {
	if p.askAgainAt == 0 || now < p.askAgainAt {
		return
	}
	p.askAgainAt = 0
	if len(p.staged.trains) > 0 {
		p.initiate(now)
	}
}

// sendInitiation sends the first message of a handshake, in place of one that may be in flight. The caller holds mu.
func (p *Peer) sendInitiation(now int64) {
	if p.engine.Endpoint.Load() == nil || p.remote == nil {
		return
	}
	p.endAttempt()
	var msg wire.Initiation
	b, err := p.createInitiation(&msg, now)
	p.attempt = b
	if err != nil {
		p.dev.log.Error("creating an initiation", "peer", p.key, "error", err)
		p.endAttempt()
		return
	}
	p.dev.handshakeCounts.initiated.Add(1)
	p.dev.log.Debug("handshake initiated", "peer", p.key, "endpoint", p.engine.Endpoint.Load().Dst)
	p.sendHandshake(msg[:], now)
	p.timers.InitiationSent(now, p.dev.jitter())
}

// createInitiation writes the initiation and returns the index it bears; on error, what there is of it.
func (p *Peer) createInitiation(msg *wire.Initiation, now int64) (*keyBinding, error) {
	b, err := p.reserveIndex()
	if err != nil {
		return nil, err
	}
	timestamp := p.tai.Now(p.dev.cfg.Wall())
	p.initiatedAt = timestamp
	if p.dev.spreading.Load().mode != config.SpreadOff {
		timestamp = timestamp.Signed()
	}
	p.initiator = noise.NewInitiator(p.remote)
	if err := p.initiator.CreateInitiation(msg, b.index, timestamp, p.dev.cfg.Rand); err != nil {
		return b, err
	}
	return b, p.cookieJar().AddMACs(msg[:], now)
}

// endAttempt gives up the handshake in flight, if any. The caller holds mu.
func (p *Peer) endAttempt() {
	p.releaseIndex(p.attempt)
	p.attempt = nil
	if p.initiator != nil {
		p.initiator.Wipe()
		p.initiator = nil
	}
}

// jitter returns up to peer.MaxJitter nanoseconds, so that two peers do not initiate at once for ever (paper §6.1).
func (d *Device) jitter() int64 {
	var b [8]byte
	if _, err := io.ReadFull(d.cfg.Rand, b[:]); err != nil {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(b[:]) % uint64(peer.MaxJitter))
}
