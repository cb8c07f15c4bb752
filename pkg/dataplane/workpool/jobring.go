// SPDX-License-Identifier: Apache-2.0

package workpool

import (
	"runtime"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// JobRing is a ring of jobs that one lane submits and workers run. Jobs are claimed in the order of submission, so one
// counter separates claimed from unclaimed jobs. The lane claims jobs in the same way as a worker. Only the lane's goroutine
// may call the exported methods, except Stats.
type JobRing struct {
	pool  *Pool
	slots []slot // the length is a power of two
	limit int    // most jobs in the ring

	_          [64]byte // workers read the fields above; the lane writes those below
	head       uint64   // number of the oldest job that is not collected
	tail       uint64   // number of the next job
	nextWorker int      // the worker that assignWorker tries first
	policy     backoffPolicy
	stats      counters

	_         [64]byte
	submitted atomic.Uint64 // tail, as workers see it; written by the lane
	_         [56]byte
	claimed   atomic.Uint64 // number of the next job that a worker or the lane may claim
	_         [56]byte
	// attached counts the workers that are assigned to this ring.
	attached atomic.Int32
	// runTime and runDelay are the workers' CPU time and their time runnable without a CPU, in ns, since the last evaluation.
	runTime, runDelay atomic.Int64
	_                 [40]byte
	offer             offer
	_                 [40]byte
}

// slot holds one job. The lane owns all fields but done until it submits the job, and again once done is set.
type slot struct {
	job    Job
	byLane bool // the lane ran the job
	done   atomic.Bool
	_      [40]byte
}

func (j *slot) run(s *session.Scratch) {
	j.job.Run(s)
	j.done.Store(true)
}

// NewJobRing returns a ring of depth slots, a power of two. It holds at most as many jobs as the
// workers can use. These are two for each worker, one running and one waiting, and one for the
// lane.
func (p *Pool) NewJobRing(depth int) *JobRing {
	return &JobRing{pool: p, slots: make([]slot, depth), limit: min(depth, 2*p.Workers()+1)}
}

// Pending returns the number of jobs that were submitted and not collected.
func (r *JobRing) Pending() int { return int(r.tail - r.head) }

// Full reports whether the lane must call Collect before Submit.
func (r *JobRing) Full() bool { return r.Pending() >= r.limit }

// Submit adds a job to a ring that is not full, and assigns another worker if those attached are busy. The caller must not
// touch the job, or anything that it uses, until Collect returns it.
func (r *JobRing) Submit(job Job) {
	j := r.at(r.tail)
	j.job, j.byLane = job, false
	j.done.Store(false)
	r.tail++
	r.submitted.Store(r.tail)
	r.stats.submitted.Add(1)
	attached := int(r.attached.Load())
	if attached == 0 || attached < len(r.pool.workers) && r.tail-r.claimed.Load() > 1 {
		r.pool.assignWorker(r)
	}
}

// OldestDone reports whether the oldest job is done, so that Collect returns at once.
func (r *JobRing) OldestDone() bool { return r.Pending() > 0 && r.at(r.head).done.Load() }

// Collect removes the oldest job of a ring that is not empty and returns it once it is done. While it waits, it runs
// unclaimed jobs with s.
func (r *JobRing) Collect(s *session.Scratch) Job {
	j := r.at(r.head)
	for spins := 0; !j.done.Load(); {
		spins = r.runOrWait(s, spins)
	}
	r.head++
	r.countCollected(j.byLane)
	job := j.job
	j.job = nil // the job may refer to a lane that ends before this slot is used again
	return job
}

// runOrWait runs an unclaimed job; without one it spins for the n-th time in a wait for a worker. It returns n for the next call.
func (r *JobRing) runOrWait(s *session.Scratch, n int) int {
	if j := r.claim(); j != nil {
		j.byLane = true
		j.run(s)
		return n
	}
	if n++; n%spinsPerYield == 0 {
		r.yieldWhileWaiting(n / spinsPerYield)
	}
	return n
}

// yieldWhileWaiting yields the core for the n-th time in one wait for a worker.
func (r *JobRing) yieldWhileWaiting(n int) {
	r.pool.yield()
	if n%8 == 0 {
		runtime.Gosched() // a garbage collection may have taken the worker's Go processor
	}
	if n == longWaitYields {
		r.policy.longWaits++
	}
}

func (r *JobRing) at(i uint64) *slot { return &r.slots[i&uint64(len(r.slots)-1)] }

// unclaimed reports whether there is a job to claim.
func (r *JobRing) unclaimed() bool { return r.claimed.Load() != r.submitted.Load() }

// runNext runs the oldest unclaimed job, without one the offered job, for a worker. It reports whether there was either.
func (r *JobRing) runNext(s *session.Scratch) bool {
	if j := r.claim(); j != nil {
		j.run(s)
		return true
	}
	return r.runOffer(s)
}

// claim returns the oldest unclaimed job, nil for none. The caller must run it.
func (r *JobRing) claim() *slot {
	for {
		at := r.claimed.Load()
		if at == r.submitted.Load() {
			return nil
		}
		if r.claimed.CompareAndSwap(at, at+1) {
			return r.at(at)
		}
	}
}

// addThreadTime adds the times that a worker measured while it served this ring.
func (r *JobRing) addThreadTime(runTime, runDelay int64) {
	r.runTime.Add(runTime)
	if runDelay > 0 {
		r.runDelay.Add(runDelay)
	}
}
