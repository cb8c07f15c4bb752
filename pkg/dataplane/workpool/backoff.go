// SPDX-License-Identifier: Apache-2.0

package workpool

import "time"

const (
	// backlogThreshold is the recent backlog, in units of ReportBacklog, from which workers pay. maxBacklog bounds its
	// memory: a burst of a few trains is over before a worker is awake.
	backlogThreshold = 8
	maxBacklog       = 4 * backlogThreshold

	// evaluationJobs is the number of collected jobs between two evaluations.
	evaluationJobs = 64
	// minByWorkers is the number of these that workers must have run for a good evaluation.
	minByWorkers = evaluationJobs / 8
	// maxLongWaits is the number of long waits that makes an evaluation bad.
	maxLongWaits = 2
	// longWaitYields is the length of a long wait for a worker, in yields: some 60 µs, twice as long as a train takes on
	// another core.
	longWaitYields = 128
	// trustedEvaluations is the number of consecutive good evaluations that reset the backoff time. After them, one bad
	// evaluation is tolerated: other programs may run briefly on an idle machine too.
	trustedEvaluations = 8

	minBackoff = int64(10 * time.Millisecond)
	maxBackoff = int64(time.Second)
)

// backoffPolicy decides whether a lane should submit jobs.
type backoffPolicy struct {
	backlog         int   // recent backlog, at most maxBacklog
	now             int64 // of the last call of Available
	closedUntil     int64 // end of the current backoff
	backoff         int64 // length of the last backoff, in ns
	goodEvaluations int   // in a row

	// Since the last evaluation: jobs run by workers and by the lane, and long waits for a worker.
	byWorkers, byLane, longWaits int
}

// ReportBacklog reports how much input waits behind what the lane handles now. Zero or less means that the lane has caught up.
func (r *JobRing) ReportBacklog(waiting int) {
	if waiting <= 0 {
		r.policy.backlog /= 2
		return
	}
	r.policy.backlog = min(r.policy.backlog+waiting, maxBacklog)
}

// Backlogged reports whether the lane has been behind for a while, so that waking a worker pays.
func (r *JobRing) Backlogged() bool { return r.policy.backlog >= backlogThreshold }

// Available reports whether the ring accepts jobs: it has workers and does not back off. now is in ns of any monotonic clock.
func (r *JobRing) Available(now int64) bool {
	if r.pool == nil {
		return false
	}
	r.policy.now = now
	return now >= r.policy.closedUntil
}

// countCollected counts a collected job.
func (r *JobRing) countCollected(byLane bool) {
	p := &r.policy
	if byLane {
		p.byLane++
		r.stats.byLane.Add(1)
	} else {
		p.byWorkers++
		r.stats.byWorkers.Add(1)
	}
	if p.byWorkers+p.byLane >= evaluationJobs {
		r.evaluate()
	}
}

// evaluate starts a backoff if the workers did not pay. They ran too few jobs, made the lane wait
// too often, or waited for their cores a third of the time.
func (r *JobRing) evaluate() {
	p := &r.policy
	runTime, runDelay := r.runTime.Swap(0), r.runDelay.Swap(0)
	switch good := p.byWorkers >= minByWorkers && p.longWaits < maxLongWaits && runDelay <= runTime/2; {
	case good:
		if p.goodEvaluations++; p.goodEvaluations >= trustedEvaluations {
			p.backoff = 0
		}
	case p.goodEvaluations >= trustedEvaluations:
		p.goodEvaluations = 0
	default:
		p.goodEvaluations = 0
		p.backoff = min(max(2*p.backoff, minBackoff), maxBackoff)
		p.closedUntil = p.now + p.backoff
		r.stats.backOffs.Add(1)
	}
	p.byWorkers, p.byLane, p.longWaits = 0, 0, 0
}
