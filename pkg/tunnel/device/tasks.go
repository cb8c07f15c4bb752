// SPDX-License-Identifier: Apache-2.0

package device

import (
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/hello"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pqexchange"
)

// post posts a task for a worker. It never blocks, since each peer is queued at most once.
func (p *Peer) post(task uint32) {
	for {
		old := p.tasks.Load()
		if old&task == task {
			return
		}
		if !p.tasks.CompareAndSwap(old, old|task) {
			continue
		}
		if old == 0 {
			p.dev.tasks.put(p)
		}
		return
	}
}

// postExchange posts taskExchange. A session that carries no data without a key does not wait for
// the handshakes with other peers.
func (p *Peer) postExchange() {
	switch {
	case p.quantum.policy() == config.PostQuantumRequired:
		p.post(taskExchange)
	case !p.exchange.Swap(true):
		p.dev.exchangeTasks.put(p)
	}
}

// runExchange runs taskExchange of the first peer that waits in Device.exchangeTasks.
func (d *Device) runExchange() {
	p := d.exchangeTasks.take()
	p.exchange.Store(false)
	p.runTasks(taskExchange)
}

// The tasks that lanes and timers post for a worker.
const (
	taskHandshake uint32 = 1 << iota // a session is needed
	taskConfirm                      // the unconfirmed key pair was used
	taskTimer                        // a timer fired, or must be set again
	taskHello                        // a hello waits, or the peer was first heard from a source port
	taskRoamed                       // the peer's address or port changed
	taskProbe                        // a probe, or the answer to one, waits, or one may be due
	taskRoute                        // the route to the peer must be looked up
	taskSendGroup                    // data to the peer waits for a send buffer
	taskRenew                        // it is the peer's turn in renewals
	taskExchange                     // a part of a post-quantum exchange waits, or it is the peer's turn in exchanges
)

// taskQueue holds the peers that wait for a worker, in FIFO order, each at most once. It takes memory only while peers wait:
// a channel of peers would take half a megabyte.
type taskQueue struct {
	waiting chan struct{} // a token for each peer; tokens have no size, so there is room for all
	mu      sync.Mutex
	peers   []*Peer // those before first were taken
	first   int
}

// minTaskCapacity is the capacity, in peers, that is kept when no peer waits.
const minTaskCapacity = 64

func (q *taskQueue) init() { q.waiting = make(chan struct{}, MaxPeers) }

// put appends p. It does not block.
func (q *taskQueue) put(p *Peer) {
	q.mu.Lock()
	q.peers = append(q.peers, p)
	q.mu.Unlock()
	q.waiting <- struct{}{}
}

// take removes the first peer. The caller must have received a token from waiting.
func (q *taskQueue) take() *Peer {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.peers[q.first]
	q.peers[q.first] = nil
	q.first++
	if 2*q.first >= len(q.peers) { // each peer is moved once on average
		n := copy(q.peers, q.peers[q.first:])
		clear(q.peers[n:])
		q.peers, q.first = q.peers[:n], 0
	}
	if len(q.peers) == 0 && cap(q.peers) > minTaskCapacity {
		q.peers = nil
	}
	return p
}

// runTasks runs tasks that were posted.
func (p *Peer) runTasks(tasks uint32) {
	var m *hello.Pending
	if tasks&taskHello != 0 {
		m = p.hello.take()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isUp() {
		return
	}
	if tasks&taskSendGroup != 0 {
		p.spread.chooseGroup()
	}
	now := p.dev.clock()
	var parts []pqexchange.Part
	if tasks&taskExchange != 0 {
		parts = p.quantum.takeParts()
	}
	p.sessions.handleConfirmed(now) // for every task: a lane may have promoted a key pair since
	p.handshake.runTasks(tasks, now)
	if tasks&taskRoamed != 0 {
		p.location.updateGuard()
		p.location.followRoam(now)
	}
	if tasks&taskHello != 0 {
		p.hello.handle(m, now)
	}
	if tasks&taskExchange != 0 {
		p.quantum.runTask(parts, now)
	}
	if tasks&taskProbe != 0 {
		p.probing.handle(now)
		p.mtu.takeReported(now)
		p.probing.run(now)
	}
	if tasks&taskRoute != 0 {
		p.mtu.lookUpRoute(now)
	}
	if tasks&taskTimer != 0 {
		p.runTimers(now)
	}
	p.armTimer(now)
}

// runTimers runs the timers that are due. The caller holds mu.
func (p *Peer) runTimers(now int64) {
	p.runTimerActions(p.timers.Fire(now, &p.engine.Activity), now)
	p.hello.runTimer(now)
	p.quantum.runTimers(now)
	p.mtu.runTimer(now)
	p.probing.run(now)
	p.location.followDeferredRoam(now)
	p.handshake.initiateDeferred(now)
	p.handshake.retry(now)
}

// runTimerActions runs the actions that the timers request. The caller holds mu.
func (p *Peer) runTimerActions(a peer.Actions, now int64) {
	if a.Has(peer.EraseSessions) {
		p.log().Info("session keys erased after 9 minutes without a handshake, the next packet to the peer starts a handshake", "peer", p.key, "last_handshake", p.handshake.completedAt)
		p.sessions.erase()
		p.handshake.endAttempt()
		p.handshake.cookies = nil
	}
	if a.Has(peer.GiveUp) {
		p.dev.counts.handshakes.gaveUp.Add(1)
		p.log().Info("handshake not answered until the timeout, dropping packets that wait for it: the next packet starts a handshake again", "peer", p.key, "timeout", time.Duration(peer.RekeyAttemptTime).String())
		p.staged.drop()
		p.handshake.endAttempt()
		if p.quantum.machine.Load().GiveUp() {
			p.log().Warn("the peer answers with another post-quantum key than was named, erasing all of them: the next session has none", "peer", p.key)
		}
	}
	if a.Has(peer.ClearSource) {
		p.location.clearSource()
		if p.probing.active() {
			p.probing.prober.Unanswered()
		}
	}
	if a.Has(peer.SendInitiation) {
		p.handshake.sendInitiation(now)
	}
	if a.Has(peer.SendKeepalive) {
		p.sendKeepalive(now)
	}
}

// sendKeepalive sends an empty message, or starts a handshake if there is no session and none will be started by a renewal. The caller
// holds mu.
func (p *Peer) sendKeepalive(now int64) {
	switch keys := p.sessions.controlKeys(); {
	case keys.Usable(now):
		p.dev.engine.SendKeepalive(p.engine, keys)
	case !p.dev.renewals.Concerns(p):
		p.handshake.initiate(now)
	}
}

// timerState holds the timers of a peer. Peer.mu guards it.
type timerState struct {
	peer.Timers
	timer     *time.Timer // nil while no timer is set
	keepalive uint16      // persistent keepalive interval, in seconds
}

// armTimer sets the timer to the peer's next deadline, or stops it if there is none. The caller holds mu.
func (p *Peer) armTimer(now int64) {
	p.noteChange() // whatever has led here
	t := &p.timers
	next := t.Next(now, &p.engine.Activity)
	for _, deadline := range []int64{p.hello.next(), p.probing.next(now), p.mtu.known.Next(), p.location.roams.Next(), p.handshake.initiateAt, p.handshake.retryAt, p.quantum.machine.Load().Next(p.sessions.inUse(), now)} {
		if deadline != 0 && (next == 0 || deadline < next) {
			next = deadline
		}
	}
	if next == 0 {
		p.stopTimer()
		return
	}
	// Not 0: Go 1.26 crashes under the race detector if two goroutines of a synctest bubble set timers that are due already.
	wait := time.Duration(max(coalesce(now, next)-now, 1))
	if t.timer == nil {
		t.timer = time.AfterFunc(wait, p.Wake)
	} else {
		t.timer.Reset(wait)
	}
}

// stopTimer releases the timer. If it has fired already, a worker finds that nothing is due. The caller holds mu.
func (p *Peer) stopTimer() {
	if p.timers.timer != nil {
		p.timers.timer.Stop()
		p.timers.timer = nil
	}
}

const (
	// coalesceAfter is the minimum time, in ns, until a deadline that is coalesced with others. Deadlines of handshake retries, which are
	// jittered on purpose, and of hellos are less than that away, so they keep their instants.
	coalesceAfter = int64(8 * time.Second)
	// slack is the granularity of coalesced timers, 2^28 ns or 268 ms. Peers with deadlines close together wake the machine once.
	// Linux's timer wheel may delay a timer of 10 s by as much.
	slack = int64(1) << 28
)

// coalesce returns the instant at which the timer for a deadline fires.
func coalesce(now, deadline int64) int64 {
	if deadline-now < coalesceAfter {
		return deadline
	}
	return (deadline + slack - 1) &^ (slack - 1)
}
