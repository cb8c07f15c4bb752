// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"context"
	"errors"
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
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/admission"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/hello"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
)

// handshakes are the handshakes with one peer. Peer.mu guards all but replies and turn.
type handshakes struct {
	peer      *Peer
	replies   pace.Rate     // responses and cookie replies in the reserved share
	turn      pace.Turn     // guarded by Device.renewals
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

	initiateAt int64 // when a deferred handshake may start, 0 for never
	retries    int32 // how many times the initiation of a renewal was repeated
	retryAt    int64 // when it is repeated again, 0 for never
}

// yieldsCrossing reports whether our handshake yields to the peer's when the two crossed. The side
// with the larger public key yields. Two stock devices both drop their handshake and retry after 5
// s. If the peer is one, it drops its own and answers ours, so ours does not yield.
func (h *handshakes) yieldsCrossing(id *identity) bool {
	local := id.Public()
	return bytes.Compare(h.peer.key[:], local[:]) < 0
}

// accept authenticates the initiation in r. It rejects a replay, and an initiation that follows the
// last too soon.
func (h *handshakes) accept(r *noise.Responder, now int64) (timestamp noise.Timestamp, reason drop.Reason) {
	timestamp, reason = r.Authenticate(h.remote)
	switch {
	case reason != drop.None:
		return timestamp, reason
	case !timestamp.After(h.lastAccepted):
		return timestamp, drop.HSReplay
	case h.lastAcceptedAt != 0 && now-h.lastAcceptedAt < peer.MinInitiationInterval:
		return timestamp, drop.HSFlood
	}
	h.lastAccepted, h.lastAcceptedAt = timestamp, now
	h.peer.noteChange()
	return timestamp, drop.None
}

// respond sends the response to the initiation in r, which has named a key. The caller holds mu.
func (h *handshakes) respond(r *noise.Responder, named postquantum.Key, signed bool, now int64) {
	p := h.peer
	var msg wire.Response
	b, err := h.createResponse(r, named, &msg, now)
	if err != nil {
		p.log().Error("creating a handshake response failed, dropping the initiation: the peer retries in 5 seconds", "peer", p.key, "error", err)
		p.sessions.release(b)
		return
	}
	b.signed = signed
	p.sessions.establish(b, false)
	p.timers.ResponseSent(now)
	_ = h.send(b, msg[:], now) // counted; the peer tries again
	p.armTimer(now)
	p.dev.noteGarbage(p.dev.counts.handshakes.answered.Add(1))
	p.log().Debug("handshake response sent", "peer", p.key, "endpoint", p.engine.Endpoint.Load().Dst)
}

// createResponse writes the response and returns its session. On error it returns the part that must be released, or nil.
func (h *handshakes) createResponse(r *noise.Responder, named postquantum.Key, msg *wire.Response, now int64) (*keyBinding, error) {
	p := h.peer
	b, err := p.sessions.reserve()
	if err != nil {
		return nil, err
	}
	psk, key := p.quantum.machine.Load().PresharedKey(named, &h.psk)
	defer clear(psk[:])
	keys, err := r.CreateResponse(msg, b.index, &psk, p.dev.cfg.Rand)
	defer keys.Wipe()
	if err != nil {
		return b, err
	}
	if b.keys, err = session.NewKeypair(&keys, now); err != nil {
		return b, err
	}
	h.bindExchange(b, &keys, key)
	return b, h.cookieJar().AddMACs(msg[:], now)
}

// bindExchange gives b its exchange, and restricts it if it may carry no data. The caller holds mu.
func (h *handshakes) bindExchange(b *keyBinding, keys *noise.Keys, key postquantum.Key) {
	data := false
	if b.exchange, data = h.peer.quantum.machine.Load().Bind(keys, key); !data {
		b.keys.Restrict()
	}
}

// cookieJar returns the cookies that the peer has sent. The caller holds mu.
func (h *handshakes) cookieJar() *noise.CookieJar {
	if h.cookies == nil {
		h.cookies = noise.NewCookieJar(h.remote)
	}
	return h.cookies
}

// noteMessage counts an authenticated handshake message of n bytes and updates the endpoint. The caller holds mu.
func (h *handshakes) noteMessage(n int, from underlay.Endpoint, now int64) {
	p := h.peer
	if to := p.engine.Endpoint.Load(); to == nil || *to != from {
		p.location.move(from)
		p.location.updateGuard()
	}
	p.engine.CountHandshake(n, 0)
	p.engine.Activity.Received(now, false)
}

// complete updates timers and statistics: both sides have the session of b, and need no other handshake. The caller holds mu.
func (h *handshakes) complete(b *keyBinding, now int64) {
	p := h.peer
	p.location.proven = b.sentTo
	p.quantum.machine.Load().HandshakeComplete()
	h.endAttempt()
	p.dev.renewals.Leave(p)
	p.timers.HandshakeComplete()
	p.requestRoute()
	if h.completedAt.IsZero() || h.unanswered > config.ManyUnanswered || p.spread.upDue {
		p.spread.upDue = true
		p.location.settles.Store(now + hello.Wait)
	}
	h.unanswered, h.sendErr, h.refused = 0, nil, refusal{}
	h.completedAt = p.dev.cfg.Wall()
	p.noteSession()
	p.log().Debug("handshake complete", "peer", p.key, "endpoint", p.engine.Endpoint.Load().Dst)
	p.spread.logUp(false)
}

// send sends a handshake message for the session of b to the peer's endpoint. The error is from the
// system call. The caller holds mu.
func (h *handshakes) send(b *keyBinding, msg []byte, now int64) error {
	p := h.peer
	to := p.engine.Endpoint.Load()
	if to == nil {
		p.dropForPeer(drop.TXNoEndpoint, 1)
		return nil
	}
	p.location.checkLoop(to)
	b.sentTo = to.Dst.Addr()
	p.engine.Activity.Sent(now, false) // before an answer can arrive
	why, err := p.dev.outer.send(to, func(port underlay.Port) error { return port.SendTo(to, msg) })
	if why != drop.None {
		p.dropForPeer(why, 1)
		return err
	}
	p.engine.CountHandshake(0, len(msg))
	return nil
}

// initiate starts a handshake unless one is in flight or the last started too recently. In the latter case it schedules one
// for the staged packets, which must not wait for the next packet. The caller holds mu.
func (h *handshakes) initiate(now int64) {
	p := h.peer
	if p.timers.HandshakeWanted(now) {
		h.sendInitiation(now)
	} else if h.attempt == nil && p.staged.has() {
		h.initiateAt = now + peer.RekeyTimeout
	}
}

// initiateDeferred runs the handshake that initiate has scheduled, if packets are still staged. The caller holds mu.
func (h *handshakes) initiateDeferred(now int64) {
	if h.initiateAt == 0 || now < h.initiateAt {
		return
	}
	h.initiateAt = 0
	if h.peer.staged.has() {
		h.initiate(now)
	}
}

// sendInitiation sends an initiation, and ends the handshake in flight. The caller holds mu.
func (h *handshakes) sendInitiation(now int64) {
	p := h.peer
	if p.engine.Endpoint.Load() == nil || h.remote == nil {
		return
	}
	h.endAttempt()
	var msg wire.Initiation
	b, err := h.createInitiation(&msg, now)
	h.attempt = b
	if err != nil {
		p.log().Error("creating a handshake initiation failed, retrying at the next packet for the peer", "peer", p.key, "error", err)
		h.endAttempt()
		return
	}
	p.dev.noteGarbage(p.dev.counts.handshakes.initiated.Add(1))
	p.log().Debug("handshake initiation sent", "peer", p.key, "endpoint", p.engine.Endpoint.Load().Dst)
	h.noteInitiation(h.send(b, msg[:], now), now)
	p.timers.InitiationSent(now, p.dev.jitter())
	p.location.lookUpName(now)
}

// noteInitiation records an initiation; err says why it was not sent. It warns at the first of several errors, and once when
// config.ManyUnanswered initiations were not answered. The caller holds mu.
func (h *handshakes) noteInitiation(err error, now int64) {
	p := h.peer
	if err == nil && h.sendErr != nil {
		h.unanswered = 0 // those before were not sent
	}
	firstError, many := err != nil && h.sendErr == nil && !errors.Is(err, underlay.ErrLoop), err == nil && h.unanswered == config.ManyUnanswered
	h.unanswered++
	h.sendErr = err
	if !firstError && !many {
		return
	}
	level := p.dev.failuresLog.Level(now, slog.LevelWarn) // there may be thousands of such peers
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

// report describes the handshake if it does not succeed. The caller holds mu.
func (h *handshakes) report() (r config.PeerHandshake) {
	r.Unanswered, r.Refused, r.RefusedKey = h.unanswered, h.refused.reason, h.refused.key
	if h.attempt != nil && r.Unanswered > 0 {
		r.Unanswered-- // the last one may still be answered
	}
	if h.sendErr != nil {
		r.Error = h.sendErr.Error()
	}
	return r
}

// createInitiation writes the initiation and returns its receiver index. On error it returns the part that must be released, or nil.
func (h *handshakes) createInitiation(msg *wire.Initiation, now int64) (*keyBinding, error) {
	p := h.peer
	b, err := p.sessions.reserve()
	if err != nil {
		return nil, err
	}
	timestamp := h.clock.Now(p.dev.cfg.Wall())
	h.lastSent = timestamp
	timestamp = p.quantum.machine.Load().Mark(timestamp, p.hello.announced(), now)
	h.initiator = noise.NewInitiator(h.remote)
	noise.Secretly(func() { err = h.initiator.CreateInitiation(msg, b.index, timestamp, p.dev.cfg.Rand) })
	if err != nil {
		return b, err
	}
	return b, h.cookieJar().AddMACs(msg[:], now)
}

// endAttempt ends our handshake in flight, if any. The caller holds mu.
func (h *handshakes) endAttempt() {
	h.peer.sessions.release(h.attempt)
	h.attempt = nil
	if h.initiator != nil {
		h.initiator.Wipe()
		h.initiator = nil
	}
}

// setIdentity derives the handshake keys for id and the peer. No handshake may be in flight. The caller holds mu.
func (h *handshakes) setIdentity(id *identity) {
	p := h.peer
	h.remote, h.initiator, h.cookies = nil, nil, nil
	p.quantum.machine.Load().Erase()
	defer p.staged.updateRefusal()
	if id == nil {
		return
	}
	p.quantum.machine.Load().SetIdentity(id.Public(), p.key)
	var remote *noise.Remote
	var err error
	noise.Secretly(func() { remote, err = noise.NewRemote(id.Identity, p.key) })
	if err != nil {
		p.log().Warn("public key of the peer is invalid, no handshake with this peer is possible until it has another key", "peer", p.key, "error", err)
		return
	}
	h.remote = remote
}

// fails reports whether an initiation before the last one was not answered. The caller holds mu.
func (h *handshakes) fails() bool { return h.unanswered > 1 }

// retryIntervals are the times, in ns, that a device waits for an answer before it repeats an initiation that renews a session. After
// them the WireGuard timers take over. These retries are faster: traffic waits, and the peer answered a moment ago. Until it has answered,
// it sends messages of erased sessions, which may fill the receive buffer so that its response is lost. A response to an earlier
// initiation is no longer accepted, so the intervals grow. The first is long enough for peers: the kernel's WireGuard and wireguard-go
// accept one initiation in 20 ms (INITIATIONS_PER_SECOND, drivers/net/wireguard/messages.h).
var retryIntervals = [...]int64{
	int64(60 * time.Millisecond), int64(250 * time.Millisecond), int64(750 * time.Millisecond), int64(2 * time.Second),
}

// maxRenewals is the number of sessions that a device renews at the same time. It is half of the load that makes a device ask for cookies: the answers
// to its own initiations must not.
const maxRenewals = admission.LoadLen / 2

// turnRetries is the number of retries after which a peer that does not answer leaves its turn to others.
const turnRetries = 2

// renew starts a handshake with a peer whose session this device has erased, once it is the peer's turn. The peer still sends with that
// session, and would start a handshake only after 15 s without an answer (Keepalive-Timeout + Rekey-Timeout). The caller holds mu.
func (h *handshakes) renew(now int64) {
	p := h.peer
	if p.staged.has() || p.dev.renewals.Enter(p) {
		h.startRenewal(now, false)
	}
}

// takeTurn starts the handshake for which renew has waited, unless traffic has started one meanwhile. The caller holds mu.
func (h *handshakes) takeTurn(now int64) {
	p := h.peer
	r := &p.dev.renewals
	running, _ := r.State(p)
	switch {
	case !running:
	case p.sessions.has() || h.attempt != nil:
		r.Leave(p)
	default:
		h.startRenewal(now, false)
	}
}

// startRenewal sends the initiation of renew. patient says that the peer may be busy, and that there is a session that carries data
// meanwhile. The caller holds mu.
func (h *handshakes) startRenewal(now int64, patient bool) {
	h.peer.timers.HandshakeWanted(now) // the time until it gives up begins
	h.sendInitiation(now)
	h.retries = 0
	if patient {
		h.retries = turnRetries
	}
	h.retryAt = now + retryIntervals[h.retries]
}

// retry repeats the initiation of renew when that is due. The caller holds mu.
func (h *handshakes) retry(now int64) {
	p := h.peer
	if h.retryAt == 0 || now < h.retryAt {
		return
	}
	h.retryAt = 0
	p.quantum.leaveTurn()
	if h.attempt == nil { // there is a session, or there can be none
		p.dev.renewals.Leave(p)
		return
	}
	h.sendInitiation(now)
	if h.retries++; int(h.retries) < len(retryIntervals) {
		h.retryAt = now + retryIntervals[h.retries]
	}
	if h.retries == turnRetries {
		p.dev.renewals.Leave(p)
	}
}

// runTasks starts the handshakes that are requested. The caller holds mu.
func (h *handshakes) runTasks(tasks uint32, now int64) {
	p := h.peer
	if tasks&taskHandshake != 0 && h.sessionNeeded(now) {
		if p.dev.renewals.Withdraw(p) {
			h.startRenewal(now, false)
		} else {
			h.initiate(now)
		}
	}
	if tasks&taskRenew != 0 {
		h.takeTurn(now)
	}
}

// sessionNeeded reports whether taskHandshake is still due. A responder's first answer races with the task that confirms
// its session, which may have provided a fresh one. The caller holds mu.
func (h *handshakes) sessionNeeded(now int64) bool {
	keys := h.peer.sessions.controlKeys()
	return !keys.Usable(now) || peer.RekeyDue(now, keys.Created(), keys.Initiator(), keys.Sent(), false)
}

// pending reports whether a handshake follows without help. A worker or the peer's turn will start
// it, or the timer is set and a handshake is in flight, deferred or to be retried. After a change
// of the private key, only the retry is left. The caller holds mu.
func (h *handshakes) pending() bool {
	p := h.peer
	t := &p.timers
	if _, waiting := p.dev.renewals.State(p); waiting || p.tasks.Load() != 0 {
		return true
	}
	return t.timer != nil && (h.attempt != nil || h.initiateAt != 0 || t.Retries())
}
