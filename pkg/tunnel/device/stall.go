// SPDX-License-Identifier: Apache-2.0

package device

import (
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
	// stallSteps is the minimum number of checks in which a loop makes no progress before it has
	// stalled. So a loop that has not run while the machine was suspended has several checks in
	// which to go on.
	stallSteps = 4
	// stagedLimit is the time in ns for which a peer's packets may wait without a handshake: a worker may be about to start one.
	stagedLimit = int64(2 * time.Second)
	// maxStagedChecked is the number of staged trains, oldest first, whose peers are checked.
	maxStagedChecked = 256
)

// stallWatch detects packets that are stuck. They are in a lane that does not return from a batch,
// or in a transmit queue whose send buffer never has room again. Or they wait for a session
// although nobody starts a handshake. It has no timer: the device's workers check after each task,
// and Stats before each report, so an idle device is not woken.
type stallWatch struct {
	dev                       *Device
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

// check looks for stalls if that is due. The caller holds no lock.
func (w *stallWatch) check() {
	now := w.dev.clock()
	due := w.due.Load()
	if now < due || !w.due.CompareAndSwap(due, now+stallInterval) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checkLoops(now - w.lastCheck)
	w.checkStaged(now)
	w.lastCheck = now
}

// report returns the counts after a check.
func (w *stallWatch) report() config.StallReport {
	w.check()
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
func (w *stallWatch) checkLoops(elapsed int64) {
	d := w.dev
	if w.loops == nil {
		w.loops, w.queues = make([]loopWatch, 2*d.engine.Lanes()), make([]loopWatch, d.engine.Lanes())
	}
	for i := range d.engine.Lanes() {
		tx, rx, queue := d.engine.Progress(i)
		if w.loops[2*i].check(tx, elapsed, stallLimit) {
			w.transmit.Add(1)
			w.logLoop(2 * i)
		}
		if w.loops[2*i+1].check(rx, elapsed, stallLimit) {
			w.receive.Add(1)
			w.logLoop(2*i + 1)
		}
		if w.queues[i].check(queue, elapsed, queueLimit) {
			w.queued.Add(1)
			d.log.Warn("send buffer has been full for a minute, packets to its peers are lost: the lane retries until the network device sends again",
				"lane", i)
		}
	}
}

func (w *stallWatch) logLoop(i int) {
	w.dev.log.Error("lane is stuck in a batch, its packets are lost: the health check fails until the lane resumes or this daemon restarts",
		"lane", i/2, "direction", [...]string{"transmit", "receive"}[i%2])
}

// checkStaged checks the peers of the oldest staged trains. After stagedLimit as a suspect, a peer's packets are sent, or a handshake is
// started. The caller holds the watch's lock.
func (w *stallWatch) checkStaged(now int64) {
	before := w.suspects
	w.suspects = nil
	for _, p := range w.stagedPeers() {
		since, known := before[p]
		if !known {
			since = now
		}
		restart := now-since >= stagedLimit
		if !p.staged.checkStuck(now, restart) {
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
func (w *stallWatch) stagedPeers() (peers []*Peer) {
	d := w.dev
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
