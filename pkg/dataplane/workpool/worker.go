// SPDX-License-Identifier: Apache-2.0

package workpool

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/busypoll"
	"github.com/ropewalk/ropewalk/pkg/netio/thread"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

const (
	// spinsPerYield is the number of polls between two yields of the core: some 200 ns, about what a yield takes.
	spinsPerYield = 128
	// maxYields is how often an idle worker yields its core before it sleeps: some 200 µs, in which a busy lane receives
	// more. Each time no job arrives the limit halves, down to minYields.
	maxYields = 512
	minYields = 4
	// errorPause keeps a worker from using a whole core when its poll fails repeatedly.
	errorPause = time.Millisecond
)

// worker is one goroutine locked to its own thread.
type worker struct {
	pool      *Pool
	name      string
	event     int     // an eventfd, written to wake a sleeping worker
	wakeValue [8]byte // the value written to event
	poller    busypoll.Poller

	yields     int // before the worker sleeps, between minYields and maxYields
	clock      threadClock
	eventCount [8]byte // read from event, not used
	scratch    session.Scratch

	_      [64]byte
	ring   atomic.Pointer[JobRing] // the assigned ring; nil while the worker is free
	asleep atomic.Bool
	_      [64]byte
}

// run serves job rings until the pool stops.
func (w *worker) run() {
	_, _ = thread.Lock(w.name, thread.Options{Batch: true}) // best effort: a failure costs time, which the backoff policy notices
	for !w.pool.stopping.Load() {
		if !w.serveAssigned() {
			w.sleep()
		}
	}
}

// serveAssigned serves the assigned ring, and reports whether there was one. The worker is free then.
func (w *worker) serveAssigned() bool {
	r := w.ring.Load()
	if r == nil {
		return false
	}
	w.serve(r)
	r.attached.Add(-1)
	w.ring.Store(nil)
	return true
}

// assign gives a free worker the ring r, and reports whether it was free.
func (w *worker) assign(r *JobRing) bool {
	if w.ring.Load() != nil {
		return false
	}
	r.attached.Add(1) // before the worker can detach
	if !w.ring.CompareAndSwap(nil, r) {
		r.attached.Add(-1)
		return false
	}
	if w.asleep.Load() {
		w.wake()
	}
	return true
}

// wake wakes the worker. Any goroutine may call it, and superfluous calls do no harm.
func (w *worker) wake() { _, _ = unix.Write(w.event, w.wakeValue[:]) }

// sleep returns when a ring is assigned or the pool stops. It may return earlier.
func (w *worker) sleep() {
	w.asleep.Store(true)
	if w.ring.Load() == nil && !w.pool.stopping.Load() { // later assignments see asleep and wake the worker
		if w.poller.Poll([]unix.PollFd{{Fd: int32(w.event), Events: unix.POLLIN}}) != nil {
			time.Sleep(errorPause)
		}
		_, _ = unix.Read(w.event, w.eventCount[:])
	}
	w.asleep.Store(false)
}

// serve runs the jobs of r until none has arrived for a while.
func (w *worker) serve(r *JobRing) {
	w.clock.elapsed()
	for found := true; found; found = w.waitForJob(r) {
		for r.runNext(&w.scratch) {
			r.addThreadTime(w.clock.elapsed())
		}
	}
	r.addThreadTime(w.clock.elapsed())
	w.scratch = session.Scratch{} // it refers to buffers of the lane
}

// waitForJob polls r for an unclaimed job, and reports false when the worker should stop polling.
func (w *worker) waitForJob(r *JobRing) bool {
	for range w.yields {
		for range spinsPerYield {
			if r.unclaimed() || r.offered() {
				w.yields = maxYields
				return true
			}
		}
		if w.pool.stopping.Load() {
			return false
		}
		w.pool.yield()
	}
	w.yields = max(w.yields/2, minYields)
	return false
}
