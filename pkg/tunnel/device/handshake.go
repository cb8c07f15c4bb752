// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// handshakeState is the state of the handshakes with one peer. Peer.mu guards it.
type handshakeState struct {
	remote    *noise.Remote // nil if there can be no handshake: no private key, or an unusable public key
	psk       noise.PresharedKey
	cookies   *noise.CookieJar // nil before the first handshake
	initiator *noise.Initiator // of attempt
	attempt   *keyBinding      // our handshake in flight, nil for none
	clock     noise.Clock      // per peer: a burst to many peers must not advance the timestamps beyond the wall clock

	lastAccepted   noise.Timestamp // of the peer's last accepted initiation
	lastAcceptedAt int64           // when it was accepted
	lastSent       noise.Timestamp // of our last initiation
	completedAt    time.Time       // wall clock time of the last complete handshake
	unanswered     int             // initiations since then, or since the start
	sendErr        error           // of the last initiation, nil if it was sent
	refused        refusal         // of a message from the peer's endpoint since then
}

// identity is the device's static key pair and the checker of cookies and MACs for it.
type identity struct {
	*noise.Identity
	checker *noise.CookieChecker
}

// handleHandshake handles a handshake or cookie message from the underlay.
func (d *Device) handleHandshake(msg []byte, from underlay.Endpoint, s standing) drop.Reason {
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
	if s != admitted {
		if reason := d.admit(id, msg, from, s); reason != drop.None {
			return reason
		}
	}
	noise.Secretly(func() {
		if kind == wire.TypeInitiation {
			reason = d.handleInitiation(id, msg, from)
		} else {
			reason = d.handleResponse(msg, from)
		}
	})
	return reason
}

// admit checks whether a handshake message deserves the cost of a Diffie-Hellman operation. It checks mac1, unless a lane has. Under
// load it also requires a cookie, and limits the rate per source address (WireGuard paper §5.3).
func (d *Device) admit(id *identity, msg []byte, from underlay.Endpoint, s standing) drop.Reason {
	now := d.clock()
	mac1, mac2 := s == mac1Valid, false
	if s == unchecked {
		mac1, mac2 = id.checker.Check(msg, from.Dst, now)
	}
	switch {
	case !mac1:
		return d.refuseStranger(drop.HSBadMAC1, from, noise.PublicKey{})
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
		d.log.Error("creating a cookie reply failed, dropping the handshake message: the initiator retries in 5 seconds", "endpoint", from.Dst, "error", err)
		return
	}
	reason, _ := d.send(&from, func(port underlay.Port) error { // without the DSCP of handshakes: anybody can ask for cookies
		return port.SendRun(&underlay.Run{To: &from, Parts: [][]byte{reply[:]}, SegSize: len(reply), Segments: 1})
	})
	d.engine.SlowDrops.Add(reason, 1)
}

// send sends one slow-path message by means of f. The error is that of the system call.
func (d *Device) send(to *underlay.Endpoint, f func(underlay.Port) error) (drop.Reason, error) {
	port := d.port.Load()
	if port == nil {
		return drop.TXDown, nil
	}
	err := f(port)
	switch {
	case err == nil:
		return drop.None, nil
	case errors.Is(err, underlay.ErrSendBufferFull):
		return drop.TXSendBuffer, err
	case errors.Is(err, underlay.ErrLoop):
		return drop.TXLoop, err
	}
	d.log.Debug("sending a handshake message or cookie reply failed, the initiator of the handshake retries in 5 seconds", "endpoint", to.Dst, "error", err)
	return drop.TXSendError, err
}

// handleCookieReply stores the cookie for the peer whose message the reply answers. A cookie reply proves nothing about the
// peer's address, so it never changes the endpoint.
func (d *Device) handleCookieReply(msg []byte) drop.Reason {
	p := d.byIndex(wire.ReceiverIndex(msg))
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

// byIndex returns the peer of a local receiver index, or nil.
func (d *Device) byIndex(index uint32) *Peer {
	s, ok := d.engine.Sessions.Lookup(index)
	if !ok {
		return nil
	}
	return s.Peer.SlowPath.(*Peer)
}

// handleInitiation answers the initiation of a known peer and derives the session keys. They stay unconfirmed until the
// peer uses them.
func (d *Device) handleInitiation(id *identity, msg []byte, from underlay.Endpoint) drop.Reason {
	r := noise.NewResponder(id.Identity)
	defer r.Wipe()
	key, reason := r.ConsumeInitiation(msg)
	if reason != drop.None {
		return reason
	}
	p := d.lookup(key)
	if p == nil {
		return d.refuseStranger(drop.HSUnknownPeer, from, key)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isUp() {
		return drop.RXDown
	}
	now := d.clock()
	timestamp, reason := p.acceptInitiation(r, now)
	if reason != drop.None {
		return d.logRefusal(reason, from, key)
	}
	named, signed := p.quantum.machine.Load().NamedBy(timestamp, &p.handshake.psk, p.hello.ropewalk)
	if !signed {
		p.requests.hellos.discard()
		p.resetHello(errNoHello)
	}
	p.noteHandshakeMessage(len(msg), from, now)
	if p.handshake.attempt != nil && signed && p.yieldsCrossing(id) {
		p.endAttempt()
	}
	p.respond(r, named, signed, now)
	return drop.None
}

// yieldsCrossing reports whether our handshake yields to the peer's when the two crossed: that of the side with the larger public key does.
// Two stock devices both drop their handshake and retry after 5 s. If the peer is one, it drops its own and answers ours, so ours does not yield.
func (p *Peer) yieldsCrossing(id *identity) bool {
	local := id.Public()
	return bytes.Compare(p.key[:], local[:]) < 0
}

// acceptInitiation authenticates the initiation in r. It rejects a replay, and one that follows the last too soon.
func (p *Peer) acceptInitiation(r *noise.Responder, now int64) (timestamp noise.Timestamp, reason drop.Reason) {
	timestamp, reason = r.Authenticate(p.handshake.remote)
	switch {
	case reason != drop.None:
		return timestamp, reason
	case !timestamp.After(p.handshake.lastAccepted):
		return timestamp, drop.HSReplay
	case p.handshake.lastAcceptedAt != 0 && now-p.handshake.lastAcceptedAt < peer.HandshakeInitiationRate:
		return timestamp, drop.HSFlood
	}
	p.handshake.lastAccepted, p.handshake.lastAcceptedAt = timestamp, now
	p.noteChange()
	return timestamp, drop.None
}

// respond sends the response to the initiation in r, which has named a key. The caller holds mu.
func (p *Peer) respond(r *noise.Responder, named postquantum.Key, signed bool, now int64) {
	var msg wire.Response
	b, err := p.createResponse(r, named, &msg, now)
	if err != nil {
		p.log().Error("creating a handshake response failed, dropping the initiation: the peer retries in 5 seconds", "peer", p.key, "error", err)
		p.releaseIndex(b)
		return
	}
	b.signed = signed
	p.establish(b, false)
	p.timers.ResponseSent(now)
	_ = p.sendHandshake(b, msg[:], now) // counted; the peer tries again
	p.armTimer(now)
	p.dev.noteGarbage(p.dev.handshakeCounts.answered.Add(1))
	p.log().Debug("handshake response sent", "peer", p.key, "endpoint", p.engine.Endpoint.Load().Dst)
}

// createResponse writes the response and returns its session. On error it returns the part that must be released, or nil.
func (p *Peer) createResponse(r *noise.Responder, named postquantum.Key, msg *wire.Response, now int64) (*keyBinding, error) {
	b, err := p.reserveIndex()
	if err != nil {
		return nil, err
	}
	psk, key := p.quantum.machine.Load().PresharedKey(named, &p.handshake.psk)
	defer clear(psk[:])
	keys, err := r.CreateResponse(msg, b.index, &psk, p.dev.cfg.Rand)
	defer keys.Wipe()
	if err != nil {
		return b, err
	}
	if b.keys, err = session.NewKeypair(&keys, now); err != nil {
		return b, err
	}
	p.bindExchange(b, &keys, key)
	return b, p.cookieJar().AddMACs(msg[:], now)
}

// bindExchange gives b its exchange, and restricts it if it may carry no data. The caller holds mu.
func (p *Peer) bindExchange(b *keyBinding, keys *noise.Keys, key postquantum.Key) {
	data := false
	if b.exchange, data = p.quantum.machine.Load().Bind(keys, key); !data {
		b.keys.Restrict()
	}
}

// cookieJar returns the cookies that the peer has sent. The caller holds mu.
func (p *Peer) cookieJar() *noise.CookieJar {
	if p.handshake.cookies == nil {
		p.handshake.cookies = noise.NewCookieJar(p.handshake.remote)
	}
	return p.handshake.cookies
}

// handleResponse completes a handshake that we initiated.
func (d *Device) handleResponse(msg []byte, from underlay.Endpoint) drop.Reason {
	index := wire.ReceiverIndex(msg)
	p := d.byIndex(index)
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
		return d.logRefusal(reason, from, p.key)
	}
	now := d.clock()
	b := p.handshake.attempt
	p.handshake.attempt = nil
	var err error
	if b.keys, err = session.NewKeypair(&r.Keys, now); err != nil {
		d.log.Error("deriving session keys failed, dropping the handshake response: this side retries in 5 seconds", "peer", p.key, "error", err)
		p.releaseIndex(b)
		return drop.HSInvalid
	}
	p.bindExchange(b, &r.Keys, r.Key)
	p.noteHandshakeMessage(len(msg), from, now)
	p.timers.SessionDerived(now)
	p.dev.handshakeCounts.completed.Add(1)
	p.handshakeComplete(b, now)
	staged := p.hasStaged()
	p.establish(b, true)
	if !staged || b.keys.Restricted() {
		// The responder may not send before we have used the keys.
		p.dev.engine.SendKeepalive(p.engine, b.keys)
	}
	p.helloSessionInitiated(now)
	if r.Fallback { // the peer may take this side for a stock one: it has not got the key by which to tell
		p.dev.quantumCounts.fallbacks.Add(1)
		p.queryHello(now)
	}
	p.quantum.offer(now)
	p.armTimer(now)
	return drop.None
}

// noteHandshakeMessage counts an authenticated handshake message of n bytes and updates the endpoint. The caller holds mu.
func (p *Peer) noteHandshakeMessage(n int, from underlay.Endpoint, now int64) {
	if to := p.engine.Endpoint.Load(); to == nil || *to != from {
		p.moveEndpoint(from)
		p.updateGuard()
	}
	p.engine.CountHandshake(n, 0)
	p.engine.Activity.Received(now, false)
}

// handshakeComplete updates timers and statistics: both sides have the session of b, and need no other handshake. The caller holds mu.
func (p *Peer) handshakeComplete(b *keyBinding, now int64) {
	p.path.proven = b.sentTo
	p.quantum.machine.Load().HandshakeComplete()
	p.endAttempt()
	p.dev.renewals.Leave(p)
	p.timers.HandshakeComplete()
	p.requestRoute()
	if p.handshake.completedAt.IsZero() || p.handshake.unanswered > config.ManyUnanswered || p.path.up.due {
		p.path.up.due = true
		p.path.settles.Store(now + helloWait)
	}
	p.handshake.unanswered, p.handshake.sendErr, p.handshake.refused = 0, nil, refusal{}
	p.handshake.completedAt = p.dev.cfg.Wall()
	p.noteSession()
	p.log().Debug("handshake complete", "peer", p.key, "endpoint", p.engine.Endpoint.Load().Dst)
	p.logUp(false)
}

// sendHandshake sends a handshake message for the session of b to the peer's endpoint. The error is that of the system call. The caller holds mu.
func (p *Peer) sendHandshake(b *keyBinding, msg []byte, now int64) error {
	to := p.engine.Endpoint.Load()
	if to == nil {
		p.dropForPeer(drop.TXNoEndpoint, 1)
		return nil
	}
	p.checkLoop(to)
	b.sentTo = to.Dst.Addr()
	p.engine.Activity.Sent(now, false) // before an answer can arrive
	why, err := p.dev.send(to, func(port underlay.Port) error { return port.SendTo(to, msg) })
	if why != drop.None {
		p.dropForPeer(why, 1)
		return err
	}
	p.engine.CountHandshake(0, len(msg))
	return nil
}

// garbageHandshakes is the number of handshakes after which their garbage is given back: some 20 MiB.
const garbageHandshakes = 4096

// noteGarbage is called with the number of handshakes so far.
func (d *Device) noteGarbage(handshakes uint64) {
	if handshakes%garbageHandshakes == 0 {
		d.engine.GiveBack()
	}
}

// initiate starts a handshake unless one is in flight or the last started too recently. In the latter case it schedules one
// for the staged packets, which must not wait for the next packet. The caller holds mu.
func (p *Peer) initiate(now int64) {
	if p.timers.HandshakeWanted(now) {
		p.sendInitiation(now)
	} else if p.handshake.attempt == nil && p.hasStaged() {
		p.timers.initiateAt = now + peer.RekeyTimeout
	}
}

// initiateDeferred runs the handshake that initiate has scheduled, if packets are still staged. The caller holds mu.
func (p *Peer) initiateDeferred(now int64) {
	if p.timers.initiateAt == 0 || now < p.timers.initiateAt {
		return
	}
	p.timers.initiateAt = 0
	if p.hasStaged() {
		p.initiate(now)
	}
}

// sendInitiation sends an initiation, and ends the handshake in flight. The caller holds mu.
func (p *Peer) sendInitiation(now int64) {
	if p.engine.Endpoint.Load() == nil || p.handshake.remote == nil {
		return
	}
	p.endAttempt()
	var msg wire.Initiation
	b, err := p.createInitiation(&msg, now)
	p.handshake.attempt = b
	if err != nil {
		p.log().Error("creating a handshake initiation failed, retrying at the next packet for the peer", "peer", p.key, "error", err)
		p.endAttempt()
		return
	}
	p.dev.noteGarbage(p.dev.handshakeCounts.initiated.Add(1))
	p.log().Debug("handshake initiation sent", "peer", p.key, "endpoint", p.engine.Endpoint.Load().Dst)
	p.noteInitiation(p.sendHandshake(b, msg[:], now), now)
	p.timers.InitiationSent(now, p.dev.jitter())
	p.lookUpEndpoint(now)
}

// noteInitiation records an initiation; err says why it was not sent. It warns at the first of several errors, and once when
// config.ManyUnanswered initiations were not answered. The caller holds mu.
func (p *Peer) noteInitiation(err error, now int64) {
	h := &p.handshake
	if err == nil && h.sendErr != nil {
		h.unanswered = 0 // those before were not sent
	}
	firstError, many := err != nil && h.sendErr == nil && !errors.Is(err, underlay.ErrLoop), err == nil && h.unanswered == config.ManyUnanswered
	h.unanswered++
	h.sendErr = err
	if !firstError && !many {
		return
	}
	level := slog.LevelWarn
	if !p.dev.failuresLog.Allow(now, time.Minute) { // there may be thousands of such peers
		level = slog.LevelDebug
	}
	log := p.log().With("peer", p.key, "endpoint", p.engine.Endpoint.Load().Dst)
	if firstError {
		log.Log(context.Background(), level, "sending a handshake initiation failed, retrying every 5 seconds while there is traffic for the peer", "error", err)
		return
	}
	if reason := h.refused.reason; reason != "" {
		log = log.With("refused", reason)
	}
	log.Log(context.Background(), level, "handshake initiations are not answered, retrying every 5 seconds while there is traffic for the peer",
		"initiations", config.ManyUnanswered)
}

// reportHandshake describes the handshake if it does not succeed. The caller holds mu.
func (p *Peer) reportHandshake() (r config.PeerHandshake) {
	r.Unanswered, r.Refused, r.RefusedKey = p.handshake.unanswered, p.handshake.refused.reason, p.handshake.refused.key
	if p.handshake.attempt != nil && r.Unanswered > 0 {
		r.Unanswered-- // the last one may still be answered
	}
	if p.handshake.sendErr != nil {
		r.Error = p.handshake.sendErr.Error()
	}
	return r
}

// createInitiation writes the initiation and returns its receiver index. On error it returns the part that must be released, or nil.
func (p *Peer) createInitiation(msg *wire.Initiation, now int64) (*keyBinding, error) {
	b, err := p.reserveIndex()
	if err != nil {
		return nil, err
	}
	timestamp := p.handshake.clock.Now(p.dev.cfg.Wall())
	p.handshake.lastSent = timestamp
	timestamp = p.quantum.machine.Load().Mark(timestamp, p.announces(), now)
	p.handshake.initiator = noise.NewInitiator(p.handshake.remote)
	noise.Secretly(func() { err = p.handshake.initiator.CreateInitiation(msg, b.index, timestamp, p.dev.cfg.Rand) })
	if err != nil {
		return b, err
	}
	return b, p.cookieJar().AddMACs(msg[:], now)
}

// endAttempt ends our handshake in flight, if any. The caller holds mu.
func (p *Peer) endAttempt() {
	p.releaseIndex(p.handshake.attempt)
	p.handshake.attempt = nil
	if p.handshake.initiator != nil {
		p.handshake.initiator.Wipe()
		p.handshake.initiator = nil
	}
}

// jitter returns up to peer.MaxJitter ns, so that two peers do not initiate at the same time repeatedly (paper §6.1).
func (d *Device) jitter() int64 {
	var b [8]byte
	if _, err := io.ReadFull(d.cfg.Rand, b[:]); err != nil {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(b[:]) % uint64(peer.MaxJitter))
}

// lookup returns the peer with that key, or nil.
func (d *Device) lookup(key noise.PublicKey) *Peer {
	d.peersMu.RLock()
	defer d.peersMu.RUnlock()
	return d.peers[key]
}
