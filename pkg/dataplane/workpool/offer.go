// SPDX-License-Identifier: Apache-2.0

package workpool

import (
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// Outcome is the fate of a job that a lane offered.
type Outcome int32

// The outcomes of JobRing.Offer.
const (
	NotOffered Outcome = iota // there is no offer
	Open                      // no worker has begun
	Running                   // a worker runs the job
	Done                      // a worker has run the job
)

// offer is a job outside the order of a ring. Only the lane leaves NotOffered and Done. From Open the lane and all workers compete with
// one compare-and-swap, and only the worker that has won leaves Running.
type offer struct {
	job   Job // the lane's; a worker reads it while it runs it
	state atomic.Int32
}

// Offer offers one job that workers may run at any time, when they find no job in the ring. There must be no other offer. The caller must
// not touch the job, or anything that it uses, until Retract returns NotOffered or Done.
func (r *JobRing) Offer(job Job) {
	r.offer.job = job
	r.offer.state.Store(int32(Open))
	if attached := int(r.attached.Load()); attached == 0 || attached < len(r.pool.workers) && r.unclaimed() {
		r.pool.assignWorker(r)
	}
}

// Retract ends the offer unless a worker is running its job. It returns Running then, Done if a worker has run the job, and NotOffered
// if none will: the caller runs it, or forgets it.
func (r *JobRing) Retract() Outcome {
	outcome := NotOffered
	if !r.offer.state.CompareAndSwap(int32(Open), int32(NotOffered)) {
		if outcome = Outcome(r.offer.state.Load()); outcome == Running {
			return Running
		}
		r.offer.state.Store(int32(NotOffered))
	}
	r.offer.job = nil // it may refer to a lane that ends before the next offer
	return outcome
}

// AwaitOffer waits until no worker runs the offered job, and ends the offer. While it waits, it runs unclaimed jobs of the ring with s.
func (r *JobRing) AwaitOffer(s *session.Scratch) Outcome {
	outcome := r.Retract()
	for spins := 0; outcome == Running; outcome = r.Retract() {
		spins = r.runOrWait(s, spins)
	}
	return outcome
}

// offered reports whether a worker may run the offered job.
func (r *JobRing) offered() bool { return r.offer.state.Load() == int32(Open) }

// runOffer runs the offered job if nobody else does, and reports whether it has.
func (r *JobRing) runOffer(s *session.Scratch) bool {
	if !r.offered() || !r.offer.state.CompareAndSwap(int32(Open), int32(Running)) {
		return false
	}
	r.offer.job.Run(s)
	r.offer.state.Store(int32(Done))
	return true
}
