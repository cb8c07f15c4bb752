// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/metrics"
)

// Stats are an agent's counters. They may be read at any time.
type Stats struct {
	Reconciles atomic.Uint64 // how often all was looked at, by what the cluster says
	Failures   atomic.Uint64 // how often not all could be found out, done or told: with what the cluster says, or without
	Changes    atomic.Uint64 // what was changed on the node
	// Drift is what had to be changed although the cluster had not: somebody else on the host changed it, or an event was lost.
	Drift     atomic.Uint64
	Peers     atomic.Int64
	SpreadsTo atomic.Int64
	Problems  atomic.Int64
	// Ready tells that all was done, at the last look by what the cluster says. It is false once the cluster has no such node.
	Ready atomic.Bool

	perPeerMetrics metrics.PerPeer // what is shown of the tunnel's single peers

	busySince atomic.Int64 // when the present look began, in nanoseconds of Unix time; 0: there is none

	engine atomic.Pointer[Engine]               // nil: there is no tunnel
	spread atomic.Pointer[metrics.SpreadSource] // nil: nothing spreads
}

// onStateChange shows what a look came to. One that ended before it found anything out leaves what the one before it has found.
func (s *Stats) update(r *result, err error) {
	s.Changes.Add(uint64(r.changes))
	s.setEngine(r.engine)
	if r.foundNothing(err) {
		return
	}
	s.Peers.Store(int64(r.status.Peers))
	s.SpreadsTo.Store(int64(r.status.SpreadsTo))
	s.Problems.Store(int64(len(r.problems)))
	if r.spread == nil {
		s.spread.Store(nil)
		return
	}
	s.spread.Store(&r.spread)
}

// setEngine has the tunnel's metrics be those of an engine, or of none for nil.
func (s *Stats) setEngine(e Engine) {
	if e == nil {
		s.engine.Store(nil)
		return
	}
	s.engine.Store(&e)
}

// maxReconcileTime is how long a look may take.
const maxReconcileTime = 5 * time.Minute

// alive tells that the agent is not stuck. The API may be away.
func (s *Stats) alive() bool {
	began := s.busySince.Load()
	return began == 0 || time.Since(time.Unix(0, began)) < maxReconcileTime
}
