// SPDX-License-Identifier: Apache-2.0

package crew

import (
	"runtime"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/session"
)

// Desk is where one lane and the workers meet: a ring of work in the lane's order. Work is begun in that order too, so that
// one counter says what has been, and taking back is beginning. The lane's methods are for one goroutine.
type Desk struct {
	crew  *Crew
	jobs  []job // a power of two
	limit int   // of what is on it

	_      [64]byte // workers read the above, the lane writes the following
	oldest uint64   // that has not been collected
	newest uint64   // what offered is
	asked  int      // the worker to be called first
	habit  habit
	stats  counters

	_       [64]byte
	offered atomic.Uint64 // written by the lane
	_       [56]byte
	begun   atomic.Uint64 // claimed by a worker or the lane
	_       [56]byte
	// present are the workers that were called and have not left.
	present atomic.Int32
	// ran and lost are for how long they were running, and others were where they wanted to, since the last judgement.
	ran, lost atomic.Int64
	_         [40]byte
}

// job is a piece of work. All but done belongs to the lane until it is offered, and again once it is done.
type job struct {
	work Work
	back bool // the lane did it
	done atomic.Bool
	_    [40]byte
}

func (j *job) do(s *session.Scratch) {
	j.work.Do(s)
	j.done.Store(true)
}

// NewDesk returns a desk that holds up to depth pieces of work, a power of two, or what the crew can do with if that is less:
// for each worker one that it does and one that waits, and one for the lane.
func (c *Crew) NewDesk(depth int) *Desk {
	return &Desk{crew: c, jobs: make([]job, depth), limit: min(depth, 2*c.Workers()+1)}
}

// Waiting is how much has been offered and not collected.
func (d *Desk) Waiting() int { return int(d.newest - d.oldest) }

// Full tells whether Offer must wait for Collect.
func (d *Desk) Full() bool { return d.Waiting() >= d.limit }

// Offer puts work on a desk that is not full, and has a worker come if those who are there have enough to do. The work and
// all that it uses must be left alone until Collect returns it.
func (d *Desk) Offer(w Work) {
	j := d.at(d.newest)
	j.work, j.back = w, false
	j.done.Store(false)
	d.newest++
	d.offered.Store(d.newest)
	d.stats.offered.Add(1)
	present := int(d.present.Load())
	if present == 0 || present < len(d.crew.workers) && d.newest-d.begun.Load() > 1 {
		d.crew.call(d)
	}
}

// Done tells whether the oldest work on the desk is done, so that Collect returns at once.
func (d *Desk) Done() bool { return d.Waiting() > 0 && d.at(d.oldest).done.Load() }

// Collect takes the oldest work from a desk that has some and returns it when it is done. Meanwhile it does what nobody has
// begun, with s.
func (d *Desk) Collect(s *session.Scratch) Work {
	j := d.at(d.oldest)
	for looks := 0; !j.done.Load(); {
		if other := d.claim(); other != nil {
			other.back = true
			other.do(s)
			continue
		}
		if looks++; looks%glances == 0 {
			d.waitABit(looks / glances)
		}
	}
	d.oldest++
	d.note(j.back)
	w := j.work
	j.work = nil // its lane may be gone before the ring comes round
	return w
}

// waitABit is called for the n-th time in one wait for a worker.
func (d *Desk) waitABit(n int) {
	giveWay()
	if n%8 == 0 {
		runtime.Gosched() // the worker may have lost its processor to a collection
	}
	if n == tooLong {
		d.habit.waits++
	}
}

func (d *Desk) at(i uint64) *job { return &d.jobs[i&uint64(len(d.jobs)-1)] }

// waiting tells whether there is something to claim.
func (d *Desk) waiting() bool { return d.begun.Load() != d.offered.Load() }

// claim returns the oldest work that nobody has begun; the caller has to do it.
func (d *Desk) claim() *job {
	for {
		at := d.begun.Load()
		if at == d.offered.Load() {
			return nil
		}
		if d.begun.CompareAndSwap(at, at+1) {
			return d.at(at)
		}
	}
}

// report is a worker's.
func (d *Desk) report(ran, lost int64) {
	d.ran.Add(ran)
	if lost > 0 {
		d.lost.Add(lost)
	}
}
