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
	// stallInterval is the least time in ns between two checks.
	stallInterval = int64(time.Second)
	// stallLimit is the time in ns for which a lane may handle one batch, which takes at most some milliseconds.
	stallLimit = int64(10 * time.Second)
	// stallStep is the time in ns that one check adds to that of a lane at most: after a pause of the machine a lane needs time to go on.
	stallStep = stallLimit / 4
	// stagedLimit is the time in ns for which a peer's packets may wait without a handshake: a worker may be about to start one.
	stagedLimit = int64(2 * time.Second)
	// stagedChecked is the number of staged trains, oldest first, whose peers are checked.
	stagedChecked = 256
)

// stallWatch finds what takes packets and does not get on: a lane that does not return from a batch, and packets that wait for a session
// although nobody starts a handshake. It has no timer. Workers call it after a task and Stats before a report, so an idle device does not.
type stallWatch struct {
	due                       atomic.Int64 // when the next check is due
	transmit, receive, staged atomic.Uint64

	mu       sync.Mutex // guards the fields below
	checked  int64      // when the last check was
	loops    []loopWatch
	suspects map[*Peer]int64 // peers whose packets wait without a handshake, and since when
}

// loopWatch is the state of one loop of a lane.
type loopWatch struct {
	last    engine.Progress
	stuck   int64 // for how long it has not changed, in ns
	stalled bool
}

// check notes the progress after the time step, and reports whether the loop has stalled just now.
func (w *loopWatch) check(now engine.Progress, step int64) bool {
	if !now.Working() || now != w.last {
		*w = loopWatch{last: now}
		return false
	}
	w.stuck += min(step, stallStep)
	if w.stalled || w.stuck < stallLimit {
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
	d.checkLoops(now - w.checked)
	d.checkStaged(now)
	w.checked = now
}

// stallReport returns the counts after a check.
func (d *Device) stallReport() config.StallReport {
	d.checkStalls()
	w := &d.stalls
	w.mu.Lock()
	defer w.mu.Unlock()
	r := config.StallReport{Transmit: w.transmit.Load(), Receive: w.receive.Load(), Staged: w.staged.Load()}
	for i := range w.loops {
		if w.loops[i].stalled {
			r.Lanes = append(r.Lanes, loopName(i))
		}
	}
	return r
}

// loopName returns the name of a loop as its thread has it.
func loopName(i int) string { return [...]string{"tx", "rx"}[i%2] + strconv.Itoa(i/2) }

// checkLoops checks all loops after the time step. Nothing can be done here for a loop that does not return: the health check of the daemon
// fails, and the service manager restarts it. The caller holds the watch's lock.
func (d *Device) checkLoops(step int64) {
	w := &d.stalls
	if w.loops == nil {
		w.loops = make([]loopWatch, 2*d.engine.Lanes())
	}
	for i := range d.engine.Lanes() {
		tx, rx := d.engine.Progress(i)
		if w.loops[2*i].check(tx, step) {
			w.transmit.Add(1)
			d.logStalledLoop(2 * i)
		}
		if w.loops[2*i+1].check(rx, step) {
			w.receive.Add(1)
			d.logStalledLoop(2*i + 1)
		}
	}
}

func (d *Device) logStalledLoop(i int) {
	d.log.Error("lane is stuck in a batch, its packets are lost: the health check fails until the lane resumes or this daemon restarts",
		"lane", i/2, "direction", [...]string{"transmit", "receive"}[i%2])
}

// checkStaged checks the peers of the oldest staged trains, and restarts those that have been suspect for stagedLimit. The caller holds the
// watch's lock.
func (d *Device) checkStaged(now int64) {
	w := &d.stalls
	before := w.suspects
	w.suspects = nil
	for _, p := range d.stagedPeers() {
		since, known := before[p]
		if !known {
			since = now
		}
		stays := now-since < stagedLimit
		if !p.restartStaged(now, !stays) {
			continue
		}
		if !stays {
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
	for e := d.staged.order.Front(); e != nil && n < stagedChecked; e = e.Next() {
		p := e.Value.(*stagedTrain).peer
		if _, again := seen[p]; !again {
			seen[p] = struct{}{}
			peers = append(peers, p)
		}
		n++
	}
	return peers
}

// restartStaged reports whether packets wait although nothing will send them. With restart it sends them or starts a handshake.
func (p *Peer) restartStaged(now int64, restart bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	usable := p.engine.Current.Load().Usable(now)
	if !p.running || !p.hasStaged() || !usable && p.handshakeComes() {
		return false
	}
	if !restart {
		return true
	}
	p.logStaged(now, usable)
	if usable {
		p.publishCurrent()
	} else {
		p.initiate(now)
	}
	p.armTimer(now)
	return true
}

// logStaged logs that packets waited although there was a session, or no handshake. The caller holds mu.
func (p *Peer) logStaged(now int64, session bool) {
	level := slog.LevelWarn
	if !p.dev.failuresLog.allow(now, time.Minute) {
		level = slog.LevelDebug
	}
	log := p.log().With("peer", p.key)
	if session {
		log.Log(context.Background(), level, "packets stalled: they waited although there was a session, sending them")
		return
	}
	log.Log(context.Background(), level, "packets stalled: they waited for a session, and no handshake was under way, starting one")
}

// handshakeComes reports whether a handshake will be started, or is in flight or will be retried and has its timer. Another private key
// ends the one in flight, and leaves the retry. The caller holds mu.
func (p *Peer) handshakeComes() bool {
	t := &p.timers
	if p.requests.tasks.Load() != 0 || p.dev.renewals.waits(p) {
		return true
	}
	return t.timer != nil && (p.handshake.attempt != nil || t.initiateAt != 0 || t.Retries())
}
