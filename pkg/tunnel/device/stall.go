// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

const (
	// stallInterval is the minimum time in ns between two checks.
	stallInterval = int64(time.Second)
	// stallLimit is the time in ns for which a lane may handle one batch, which takes at most some milliseconds.
	stallLimit = int64(10 * time.Second)
	// queueLimit is the time in ns for which a send buffer may have no room for a run. A slow device may need seconds for a train, and IPsec
	// half a minute for a key.
	queueLimit = int64(time.Minute)
	// stallSteps is the minimum number of checks in which a loop makes no progress before it has stalled. So one that has not run while the
	// machine was suspended has several checks in which to go on.
	stallSteps = 4
	// stagedLimit is the time in ns for which a peer's packets may wait without a handshake: a worker may be about to start one.
	stagedLimit = int64(2 * time.Second)
	// maxStagedChecked is the number of staged trains, oldest first, whose peers are checked.
	maxStagedChecked = 256
)

// stallWatch detects packets that are stuck: in a lane that does not return from a batch, in a transmit queue whose send buffer never has room
// again, or waiting for a session although nobody starts a handshake. It has no timer: the device's workers check after each task, and Stats
// before each report, so an idle device is not woken.
type stallWatch struct {
	due                       atomic.Int64  // when the next check is due
	transmit, receive, queued atomic.Uint64 // stalls of transmit loops, of receive loops, and of transmit queues
	staged                    atomic.Uint64 // stalls of peers' staged packets

	mu        sync.Mutex // guards the fields below
	lastCheck int64
	loops     []loopWatch     // by lane, the transmit loop first
	queues    []loopWatch     // the lanes' transmit queues
	suspects  map[*Peer]int64 // peers whose packets wait without a handshake, and since when
}

// loopWatch is the state of a loop, the goroutine of a lane for one direction, or of a transmit queue.
type loopWatch struct {
	last    engine.Progress
	stuck   int64 // time in ns since last has changed, counted in steps of the limit by stallSteps at most
	stalled bool
}

// check records the progress, elapsed ns after the check before. It reports whether this check is the first that finds none for limit ns.
func (w *loopWatch) check(current engine.Progress, elapsed, limit int64) bool {
	if !current.Working() || current != w.last {
		*w = loopWatch{last: current}
		return false
	}
	w.stuck += min(elapsed, limit/stallSteps)
	if w.stalled || w.stuck < limit {
		return false
	}
	w.stalled = true
	return true
}

// checkStalls looks for stalls if that is due. The caller holds no lock.
func (d *Device) checkStalls() {
	now, w := d.clock(), &d.stalls
	due := w.due.Load()
	if now < due || !w.due.CompareAndSwap(due, now+stallInterval) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	d.checkLoops(now - w.lastCheck)
	d.checkStaged(now)
	w.lastCheck = now
}

// StuckLanes returns the lanes that make no progress, such as rx0. It takes no lock of a peer, so its cost does not grow with them.
func (d *Device) StuckLanes() []string { return d.stallReport().Lanes }

// stallReport returns the counts after a check.
func (d *Device) stallReport() config.StallReport {
	d.checkStalls()
	w := &d.stalls
	w.mu.Lock()
	defer w.mu.Unlock()
	r := config.StallReport{Transmit: w.transmit.Load(), Receive: w.receive.Load(), Queued: w.queued.Load(), Staged: w.staged.Load()}
	for i := range w.loops {
		if w.loops[i].stalled {
			r.Lanes = append(r.Lanes, loopName(i))
		}
	}
	for i := range w.queues {
		if w.queues[i].stalled {
			r.Queues = append(r.Queues, i)
		}
	}
	return r
}

// loopName returns the name of a loop. Its thread has the same after a prefix.
func loopName(i int) string { return [...]string{"tx", "rx"}[i%2] + strconv.Itoa(i/2) }

// checkLoops checks all loops and transmit queues, elapsed ns after the check before. It cannot restart a loop that does not return: the health
// check of the daemon fails, and the service manager restarts the daemon. A queue needs no restart: its lane tries the send buffer again
// all the time, and a new daemon would send by the same device. The caller holds the watch's lock.
func (d *Device) checkLoops(elapsed int64) {
	w := &d.stalls
	if w.loops == nil {
		w.loops, w.queues = make([]loopWatch, 2*d.engine.Lanes()), make([]loopWatch, d.engine.Lanes())
	}
	for i := range d.engine.Lanes() {
		tx, rx, queue := d.engine.Progress(i)
		if w.loops[2*i].check(tx, elapsed, stallLimit) {
			w.transmit.Add(1)
			d.logStalledLoop(2 * i)
		}
		if w.loops[2*i+1].check(rx, elapsed, stallLimit) {
			w.receive.Add(1)
			d.logStalledLoop(2*i + 1)
		}
		if w.queues[i].check(queue, elapsed, queueLimit) {
			w.queued.Add(1)
			d.log.Warn("send buffer has been full for a minute, packets to its peers are lost: the lane retries until the network device sends again",
				"lane", i)
		}
	}
}

func (d *Device) logStalledLoop(i int) {
	d.log.Error("lane is stuck in a batch, its packets are lost: the health check fails until the lane resumes or this daemon restarts",
		"lane", i/2, "direction", [...]string{"transmit", "receive"}[i%2])
}

// checkStaged checks the peers of the oldest staged trains. After stagedLimit as a suspect, a peer's packets are sent, or a handshake is
// started. The caller holds the watch's lock.
func (d *Device) checkStaged(now int64) {
	w := &d.stalls
	before := w.suspects
	w.suspects = nil
	for _, p := range d.stagedPeers() {
		since, known := before[p]
		if !known {
			since = now
		}
		restart := now-since >= stagedLimit
		if !p.checkStuck(now, restart) {
			continue
		}
		if restart {
			w.staged.Add(1)
			continue
		}
		if w.suspects == nil {
			w.suspects = map[*Peer]int64{}
		}
		w.suspects[p] = since
	}
}

// stagedPeers returns the peers of the oldest staged trains, each once.
func (d *Device) stagedPeers() (peers []*Peer) {
	d.staged.mu.Lock()
	defer d.staged.mu.Unlock()
	seen := map[*Peer]struct{}{}
	n := 0
	for e := d.staged.order.Front(); e != nil && n < maxStagedChecked; e = e.Next() {
		p := e.Value.(*stagedTrain).peer
		if _, again := seen[p]; !again {
			seen[p] = struct{}{}
			peers = append(peers, p)
		}
		n++
	}
	return peers
}

// checkStuck reports whether packets wait although nothing will send them. If so, and with restart, it sends them or starts a handshake.
func (p *Peer) checkStuck(now int64, restart bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.promoteNext()
	usable := p.engine.Current.Load().Usable(now)
	if !p.running || !p.hasStaged() || (!usable && p.handshakePending()) || p.sessions.inUse().Restricted(now) {
		return false
	}
	if !restart {
		return true
	}
	p.logStaged(now, usable)
	if usable {
		p.publish(p.sessions.current.keys) // sends them
	} else {
		p.initiate(now)
	}
	p.armTimer(now)
	return true
}

// logStaged logs that packets waited although there was a session, or because nobody had started a handshake. The caller holds mu.
func (p *Peer) logStaged(now int64, session bool) {
	level := slog.LevelWarn
	if !p.dev.failuresLog.Allow(now, time.Minute) {
		level = slog.LevelDebug
	}
	log := p.log().With("peer", p.key)
	if session {
		log.Log(context.Background(), level, "packets to the peer stalled although there was a session, sending them now")
		return
	}
	log.Log(context.Background(), level, "packets to the peer stalled because no handshake was under way, starting a handshake now")
}

// handshakePending reports whether a handshake follows without help: a worker or the peer's turn will start it, or the timer is set and a
// handshake is in flight, deferred or to be retried. After a change of the private key, only the retry is left. The caller holds mu.
func (p *Peer) handshakePending() bool {
	t := &p.timers
	if _, waiting := p.dev.renewals.State(p); waiting || p.requests.tasks.Load() != 0 {
		return true
	}
	return t.timer != nil && (p.handshake.attempt != nil || t.initiateAt != 0 || t.Retries())
}
