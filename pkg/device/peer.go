// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/engine"
	"github.com/ropewalk/ropewalk/pkg/noise"
	"github.com/ropewalk/ropewalk/pkg/peer"
	"github.com/ropewalk/ropewalk/pkg/session"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// Peer is the slow side of a peer: handshake, timers, staged packets. It implements engine.SlowPath for lanes.
type Peer struct {
	dev    *Device
	key    noise.PublicKey
	engine *engine.Peer

	pending       atomic.Uint32                   // taskQueue that wait, as bits; the peer is in Device.taskQueue while it is not zero
	confirmedKeys atomic.Pointer[session.Keypair] // the key pair that taskConfirm is about

	lastRekeyRequest atomic.Int64 // when a lane last asked for a rekey

	mail      atomic.Pointer[pendingHello] // the last hello that no worker has seen
	helloRate rate
	planRate  rate
	spreadLog rate
	roamLog   rate

	mu            sync.Mutex    // guards all below
	running       bool          // the device is up and the peer is configured
	remote        *noise.Remote // nil while there can be no handshake: without a private key, or for a key that is unusable
	psk           noise.PresharedKey
	keepalive     uint16           // seconds
	jar           *noise.CookieJar // nil before the first handshake
	initiator     *noise.Initiator // that of attempt
	attempt       *keyBinding      // our handshake in flight
	sessions      keypairs
	tai           noise.Clock // per peer: a burst to many must not push the timestamps ahead of the wall clock
	timers        peer.Timers
	timer         *time.Timer // nil while it is not set
	staged        stagingQueue
	guarded       netip.Addr // where the port's guard knows the peer to be; the zero Addr is nowhere
	askAgainAt    int64      // when a handshake that came too soon may be started, 0 for never
	hello         hello
	opened        int             // sourcePool that its plans have made us open
	greatest      noise.Timestamp // of the initiations accepted
	lastConsumed  int64           // when the last initiation was accepted
	lastHandshake time.Time       // wall clock
	initiatedAt   noise.Timestamp // of our last initiation
	resumed       *SessionState   // what start is to go on with, nil for nothing
	left          *SessionState   // what halt has ended
	insistAt      int64           // when the handshake of a device that has resumed is tried again, 0 for never
	insistences   int             // how often it was
}

// Format prints the public key, whatever the verb: a Peer holds secrets.
func (p *Peer) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "peer "+p.key.String()) }

// LogValue logs the public key.
func (p *Peer) LogValue() slog.Value { return slog.StringValue(p.key.String()) }

// The tasks that lanes and timers leave for a worker.
const (
	taskHandshake uint32 = 1 << iota // a session is wanted
	taskConfirm                      // the unconfirmed key pair was used
	taskTimer                        // a timer fired, or is to be set anew
	taskHello                        // a hello is in the mail, or the peer was heard from a source port
	taskRoamed                       // the peer is at another address or port
)

// post leaves a task for a worker; it never blocks, since each peer is queued at most once.
func (p *Peer) post(task uint32) {
	for {
		old := p.pending.Load()
		if old&task == task {
			return
		}
		if !p.pending.CompareAndSwap(old, old|task) {
			continue
		}
		if old == 0 {
			p.dev.tasks.put(p)
		}
		return
	}
}

// runTasks does what was posted.
func (p *Peer) runTasks() {
	tasks := p.pending.Swap(0)
	var m *pendingHello
	if tasks&taskHello != 0 {
		m = p.takePendingHello()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running {
		return
	}
	now := p.dev.clock()
	p.confirm(now) // whatever was posted: a lane may have promoted since
	if tasks&taskHandshake != 0 && p.sessionWanted(now) {
		p.initiate(now)
	}
	if tasks&taskRoamed != 0 {
		p.updateGuard()
		p.askAnew(true)
	}
	if tasks&taskHello != 0 {
		p.greet(m, now)
	}
	if tasks&taskTimer != 0 {
		p.runTimerActions(p.timers.Fire(now, &p.engine.Activity), now)
		p.hellos(now)
		p.initiateDeferred(now)
		p.retryHandshake(now)
	}
	p.arm(now)
}

// sessionWanted tells whether what taskHandshake was posted for still holds. A responder's first answer races with the
// task that confirms its session; by now there may be a fresh one. The caller holds mu.
func (p *Peer) sessionWanted(now int64) bool {
	keys := p.engine.Current.Load()
	return !keys.Usable(now) || peer.RekeyDue(now, keys.Created(), keys.Initiator(), keys.Sent(), false)
}

// rekeyPause is how often, in nanoseconds, a due rekey is worth a worker's time: lanes ask with every train until it
// is done.
const rekeyPause = int64(50 * time.Millisecond)

// Rekey implements engine.SlowPath.
func (p *Peer) Rekey() {
	now, last := p.dev.clock(), p.lastRekeyRequest.Load()
	if last == 0 || now-last >= rekeyPause {
		p.lastRekeyRequest.Store(now)
		p.post(taskHandshake)
	}
}

// Confirm implements engine.SlowPath. The key pair is promoted at once if it can be: the host may answer before a worker has come to
// it, and the session before this one may be dead at a peer that has begun anew. All else that follows is left to a worker, and so
// is promoting where packets are staged, all of which would be sent here: while they are, there is no session that an answer could
// leave by, and it is staged behind them.
func (p *Peer) Confirm(keys *session.Keypair) {
	p.confirmedKeys.Store(keys)
	if p.mu.TryLock() {
		if p.running && len(p.staged.trains) == 0 {
			p.promoteNext()
		}
		p.mu.Unlock()
	}
	p.post(taskConfirm)
}

// Roam implements engine.SlowPath: the peer has proved to be at from.
func (p *Peer) Roam(from underlay.Endpoint) {
	old := p.engine.Endpoint.Swap(&from)
	if old == nil || old.Dst != from.Dst {
		level := slog.LevelInfo
		if old == nil || !p.roamLog.allow(p.dev.clock(), time.Minute) { // no news, or more than is wanted of one peer
			level = slog.LevelDebug
		}
		p.dev.log.Log(context.Background(), level, "peer roamed", "peer", p.key, "endpoint", from.Dst)
	}
	if old != nil && old.Dst != from.Dst {
		p.post(taskRoamed)
	}
}

// runTimerActions carries out what the timers ask for. The caller holds mu.
func (p *Peer) runTimerActions(a peer.Actions, now int64) {
	if a.Has(peer.EraseSessions) {
		p.dev.log.Info("session expired", "peer", p.key, "last_handshake", p.lastHandshake)
		p.forgetSessions()
		p.endAttempt()
		p.jar = nil
	}
	if a.Has(peer.GiveUp) {
		p.dev.handshakeCounts.gaveUp.Add(1)
		p.dev.log.Info("handshake gave up", "peer", p.key, "after", time.Duration(peer.RekeyAttemptTime).String())
		p.dropStaged()
		p.endAttempt()
	}
	if a.Has(peer.ClearSource) {
		p.clearSource()
	}
	if a.Has(peer.SendInitiation) {
		p.sendInitiation(now)
	}
	if a.Has(peer.SendKeepalive) {
		p.sendKeepalive(now)
	}
}

// start begins to serve the peer after the interface came up or the peer was added. The caller holds Device.mu.
func (p *Peer) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = true
	p.updateGuard()
	p.timers.SetKeepalive(p.keepalive)
	p.timers.Start()
	p.forgetHello(errNoSession)
	p.resumeSession(p.dev.clock())
	p.arm(p.dev.clock())
}

// stop forgets all sessions and staged packets and stops the timers. The caller holds Device.mu.
func (p *Peer) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running {
		p.left = p.saveSession()
	}
	p.running = false
	p.resumed, p.insistAt = nil, 0
	p.disarm()
	p.timers.Stop(&p.engine.Activity)
	p.forgetSessions()
	p.endAttempt()
	p.dropStaged()
	p.askAgainAt = 0
	p.setGuardedAddr(netip.Addr{})
}

// clearSource lets routing choose our address anew: the one that the peer knew may be why nothing comes back.
func (p *Peer) clearSource() {
	if to := p.engine.Endpoint.Load(); to != nil && to.Src.IsValid() {
		p.engine.Endpoint.CompareAndSwap(to, &underlay.Endpoint{Dst: to.Dst, Scope: to.Scope})
	}
}

// sendKeepalive sends an empty message if there is a session, and asks for one otherwise. The caller holds mu.
func (p *Peer) sendKeepalive(now int64) {
	keys := p.engine.Current.Load()
	if !keys.Usable(now) {
		p.initiate(now)
		return
	}
	p.dev.engine.SendKeepalive(p.engine, keys)
}
