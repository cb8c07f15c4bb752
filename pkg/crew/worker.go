// SPDX-License-Identifier: Apache-2.0

package crew

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/linger"
	"github.com/ropewalk/ropewalk/pkg/session"
	"github.com/ropewalk/ropewalk/pkg/thread"
)

const (
	// glances are looks between two offers of the core to others: some 200 ns, about what the offer takes.
	glances = 128
	// maxPatience is how often a worker offers its core to others before it sleeps: some 200 µs, in which a lane that has work for
	// it has received some more. Each time none comes it halves, down to minPatience.
	maxPatience = 512
	minPatience = 4
	// errorPause keeps a worker whose poll gives nothing but errors from taking a whole core.
	errorPause = time.Millisecond
)

// worker is one goroutine on a thread of its own.
type worker struct {
	crew   *Crew
	name   string
	event  int     // an eventfd, written when the worker sleeps and is called
	one    [8]byte // what is written
	linger bool    // see Config

	patience int
	watch    stopwatch
	count    [8]byte // of event, of no interest
	scratch  session.Scratch

	_      [64]byte
	desk   atomic.Pointer[Desk] // that it is called to; nil while it is free
	asleep atomic.Bool
	_      [64]byte
}

// run works until the crew stops.
func (w *worker) run() {
	_ = thread.Own(w.name, thread.Options{Batch: true}) // what it is refused costs time at worst, and desks see that
	for !w.crew.stopping.Load() {
		if d := w.desk.Load(); d != nil {
			w.serve(d)
			d.present.Add(-1)
			w.desk.Store(nil)
			continue
		}
		w.sleep()
	}
}

// call gives a free worker a desk, and reports whether it was free.
func (w *worker) call(d *Desk) bool {
	if w.desk.Load() != nil {
		return false
	}
	d.present.Add(1) // before the worker can leave
	if !w.desk.CompareAndSwap(nil, d) {
		d.present.Add(-1)
		return false
	}
	if w.asleep.Load() {
		w.wake()
	}
	return true
}

// wake may be called by anyone, and more often than needed.
func (w *worker) wake() { _, _ = unix.Write(w.event, w.one[:]) }

// sleep returns when the worker is called or the crew stops, or somewhat sooner.
func (w *worker) sleep() {
	w.asleep.Store(true)
	if w.desk.Load() == nil && !w.crew.stopping.Load() { // who comes later sees that it is asleep
		if linger.Poll([]unix.PollFd{{Fd: int32(w.event), Events: unix.POLLIN}}, w.linger) != nil {
			time.Sleep(errorPause)
		}
		_, _ = unix.Read(w.event, w.count[:])
	}
	w.asleep.Store(false)
}

// serve does what is on d until there has been nothing for a while.
func (w *worker) serve(d *Desk) {
	w.watch.lap()
	for found := true; found; found = w.look(d) {
		for j := d.claim(); j != nil; j = d.claim() {
			j.do(&w.scratch)
			d.report(w.watch.lap())
		}
	}
	d.report(w.watch.lap())
	w.scratch = session.Scratch{} // it refers to buffers of the lane
}

// look reports whether something is on d, when it has been looked for long enough.
func (w *worker) look(d *Desk) bool {
	for range w.patience {
		for range glances {
			if d.waiting() {
				w.patience = maxPatience
				return true
			}
		}
		if w.crew.stopping.Load() {
			return false
		}
		giveWay()
	}
	w.patience = max(w.patience/2, minPatience)
	return false
}
