// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pqexchange"
)

var _ engine.SlowPath = (*Peer)(nil)

// Peer is the slow path of a peer: handshakes, timers, staged packets and hellos. Lanes call its engine.SlowPath methods.
type Peer struct {
	dev    *Device
	key    noise.PublicKey
	engine *engine.Peer
	name   atomic.Pointer[string] // for people, nil for none; written under mu

	requests    laneRequests
	reflections reflections

	mu        sync.Mutex // guards all fields below
	running   bool       // the device is up and the peer is configured
	removed   bool       // from the configuration: lanes and workers may still know the peer
	handshake handshakeState
	sessions  keypairs
	staged    stagedQueue // guarded by Device.staged alone: lanes use it
	timers    timerState
	hello     helloExchange
	path      pathState
	probing   probing
	mtu       pathMTUState
	echo      *echoState // nil before the first ProbePeer
	handover  handoverState
	renewal   pace.Turn // guarded by Device.renewals
	quantum   quantum
}

// laneRequests holds what lanes and timers have requested from a worker. It is safe for concurrent use.
type laneRequests struct {
	tasks            atomic.Uint32                   // waiting tasks, as bits; the peer is in Device.tasks while not zero
	sendGroup        atomic.Bool                     // taskSendGroup was posted since the port was opened
	confirmedKeys    atomic.Pointer[session.Keypair] // the key pair of taskConfirm, which a lane may have published; see Peer.confirm
	lastRekeyRequest atomic.Int64                    // when a lane last requested a rekey
	hellos           helloQueue
	probes           probeQueue
	reported         atomic.Uint64 // the size of an ICMP error in bytes, and in the low 16 bits the quoted source port; 0 for none
	replies          pace.Rate     // responses and cookie replies in the reserved share
	refused          atomic.Uint64 // the size in bytes of a message that the host refused, 0 for none
}

// Format prints the public key for every verb: a Peer holds secrets.
func (p *Peer) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "peer "+p.key.String()) }

// LogValue logs the public key.
func (p *Peer) LogValue() slog.Value { return slog.StringValue(p.key.String()) }

// rekeyPause is the minimum time, in ns, between two rekey requests that reach a worker. Lanes request a due rekey with every
// train until it is done.
const rekeyPause = int64(50 * time.Millisecond)

// Rekey implements engine.SlowPath.
func (p *Peer) Rekey() {
	now, last := p.dev.clock(), p.requests.lastRekeyRequest.Load()
	if last == 0 || now-last >= rekeyPause {
		p.requests.lastRekeyRequest.Store(now)
		p.post(taskHandshake)
	}
}

// Confirm implements engine.SlowPath. It lets lanes send with the key pair at once if it can. The host may answer before a worker runs,
// and a restarted peer may have lost the previous session. A worker does the rest. It also sends the packets that are staged: until then
// there is no current session, and answers are staged behind them.
func (p *Peer) Confirm(keys *session.Keypair) {
	if p.engine.Current.Load() == keys { // a worker has not run since the last call
		return
	}
	if p.confirm(keys) {
		p.post(taskConfirm)
	}
}

// Roam implements engine.SlowPath: an authenticated message came from the endpoint from.
func (p *Peer) Roam(from underlay.Endpoint) { p.moveEndpoint(from) }

// OnHeard implements engine.SlowPath.
func (p *Peer) OnHeard() {
	p.noteChange()
	p.post(taskHello)
}

// runTasks runs all posted tasks.
func (p *Peer) runTasks() {
	tasks := p.requests.tasks.Swap(0)
	var m *pendingHello
	if tasks&taskHello != 0 {
		m = p.takePendingHello()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isUp() {
		return
	}
	if tasks&taskSendGroup != 0 {
		p.chooseSendGroup()
	}
	now := p.dev.clock()
	var parts []pqexchange.Part
	if tasks&taskExchange != 0 {
		parts = p.quantum.takeParts()
	}
	p.confirmSession(now) // for every task: a lane may have promoted a key pair since
	p.runHandshakeTasks(tasks, now)
	if tasks&taskRoamed != 0 {
		p.updateGuard()
		p.followRoam(now)
	}
	if tasks&taskHello != 0 {
		p.handleHello(m, now)
	}
	if tasks&taskExchange != 0 {
		p.quantum.runTask(parts, now)
	}
	if tasks&taskProbe != 0 {
		p.handleProbes(now)
		p.takeReported(now)
		p.runProbes(now)
	}
	if tasks&taskRoute != 0 {
		p.lookUpRoute(now)
	}
	if tasks&taskTimer != 0 {
		p.runTimers(now)
	}
	p.armTimer(now)
}

// runHandshakeTasks starts the handshakes that are requested. The caller holds mu.
func (p *Peer) runHandshakeTasks(tasks uint32, now int64) {
	if tasks&taskHandshake != 0 && p.sessionNeeded(now) {
		if p.dev.renewals.Withdraw(p) {
			p.startRenewal(now)
		} else {
			p.initiate(now)
		}
	}
	if tasks&taskRenew != 0 {
		p.takeTurn(now)
	}
}

// runTimers runs the timers that are due. The caller holds mu.
func (p *Peer) runTimers(now int64) {
	p.runTimerActions(p.timers.Fire(now, &p.engine.Activity), now)
	p.runHelloTimer(now)
	p.quantum.runTimers(now)
	p.runPathLimits(now)
	p.runProbes(now)
	p.followDeferredRoam(now)
	p.initiateDeferred(now)
	p.retryHandshake(now)
}

// sessionNeeded reports whether taskHandshake is still due. A responder's first answer races with the task that confirms
// its session, which may have provided a fresh one. The caller holds mu.
func (p *Peer) sessionNeeded(now int64) bool {
	keys := p.controlKeys()
	return !keys.Usable(now) || peer.RekeyDue(now, keys.Created(), keys.Initiator(), keys.Sent(), false)
}

// confirmSession promotes the responder's new key pair if the initiator has used it, and does what follows. The caller holds mu.
func (p *Peer) confirmSession(now int64) {
	p.promoteNext()
	p.releaseExcess()
	b := p.sessions.confirmed
	if b == nil {
		return
	}
	p.sessions.confirmed = nil
	p.handshakeComplete(b, now)
	if b.signed {
		p.helloSessionConfirmed(now)
	}
}

// runTimerActions runs the actions that the timers request. The caller holds mu.
func (p *Peer) runTimerActions(a peer.Actions, now int64) {
	if a.Has(peer.EraseSessions) {
		p.log().Info("session keys erased after 9 minutes without a handshake, the next packet to the peer starts a handshake", "peer", p.key, "last_handshake", p.handshake.completedAt)
		p.eraseSessions()
		p.endAttempt()
		p.handshake.cookies = nil
	}
	if a.Has(peer.GiveUp) {
		p.dev.handshakeCounts.gaveUp.Add(1)
		p.log().Info("handshake not answered until the timeout, dropping packets that wait for it: the next packet starts a handshake again", "peer", p.key, "timeout", time.Duration(peer.RekeyAttemptTime).String())
		p.dropStaged()
		p.endAttempt()
		if p.quantum.machine.Load().GiveUp() {
			p.log().Warn("the peer answers with another post-quantum key than was named, erasing all of them: the next session has none", "peer", p.key)
		}
	}
	if a.Has(peer.ClearSource) {
		p.clearSource()
		if p.probing.active() {
			p.probing.Unanswered()
		}
	}
	if a.Has(peer.SendInitiation) {
		p.sendInitiation(now)
	}
	if a.Has(peer.SendKeepalive) {
		p.sendKeepalive(now)
	}
}

// sendKeepalive sends an empty message, or starts a handshake if there is no session and none will be started by a renewal. The caller
// holds mu.
func (p *Peer) sendKeepalive(now int64) {
	switch keys := p.controlKeys(); {
	case keys.Usable(now):
		p.dev.engine.SendKeepalive(p.engine, keys)
	case !p.dev.renewals.Concerns(p):
		p.initiate(now)
	}
}

// start begins to serve the peer after the interface came up or the peer was added. The caller holds Device.mu.
func (p *Peer) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running { // else it was in startFirst, or has started by itself
		p.run()
	}
}

// isUp reports whether the peer runs, and starts it before its turn in startPeers. The caller holds mu.
func (p *Peer) isUp() bool {
	if !p.running && !p.removed && p.dev.starting.Load() {
		p.run()
	}
	return p.running
}

// run is start of a peer that does not run. The caller holds mu.
func (p *Peer) run() {
	p.running = true
	p.updateRefusal()
	p.noteChange()
	p.resetSendGroup()
	p.updateGuard()
	p.timers.SetKeepalive(p.timers.keepalive)
	p.timers.Start()
	p.requests.hellos.discard()
	p.resetHello(errNoSession)
	now := p.dev.clock()
	p.resumeHello(now)
	if lostAt := p.handover.lostAt; lostAt != 0 && now-lostAt < session.RejectAfterTime {
		p.renew(now)
	}
	p.handover.lostAt = 0
	switch {
	case p.handshake.remote == nil:
		p.dropStaged()
	case p.hasStaged():
		p.post(taskHandshake)
	}
	p.armTimer(now)
}

// stop erases all sessions and stops the timers. Staged packets stay until dropStaged. The caller holds Device.mu.
func (p *Peer) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running {
		if now := p.dev.clock(); p.isLive(now) || p.dev.renewals.Concerns(p) {
			p.handover.lostAt = now
		}
	}
	p.running = false
	p.updateRefusal()
	p.noteChange()
	p.dev.renewals.Leave(p)
	p.handover.restored, p.timers.retryAt = nil, 0
	p.path.roams.due.Store(false)
	p.stopTimer()
	p.timers.Stop(&p.engine.Activity)
	p.eraseSessions()
	p.quantum.machine.Load().Erase()
	p.forgetPathLimits()
	p.forgetLoop()
	p.endAttempt()
	p.timers.initiateAt = 0
	p.setGuarded(config.Endpoint{})
}
