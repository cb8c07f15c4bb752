// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/observe/metrics"
)

// Stats are an agent's counters. They are safe for concurrent use.
type Stats struct {
	Reconciles atomic.Uint64 // reconciles with this node's objects from the API
	Failures   atomic.Uint64 // reconciles that failed, with or without them
	Changes    atomic.Uint64 // changes made to the host
	// Drift counts changes made although the cluster had not changed: another program changed the host, or an event was lost.
	Drift     atomic.Uint64
	Peers     atomic.Int64
	SpreadsTo atomic.Int64
	Problems  atomic.Int64
	// Ready reports whether the last reconcile succeeded. It is false once the cluster has no such node.
	Ready atomic.Bool

	perPeerMetrics metrics.PerPeer // when to export metrics of single peers

	busySince atomic.Int64 // start of the running reconcile, in nanoseconds of Unix time; 0: none runs

	engine atomic.Pointer[Engine]               // nil: no tunnel runs
	spread atomic.Pointer[metrics.SpreadSource] // nil: nothing is attached
}

// update records the outcome of a reconcile. If it failed before it found anything, the previous gauges stay.
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

// setEngine sets the engine whose metrics are exported; nil: none.
func (s *Stats) setEngine(e Engine) {
	if e == nil {
		s.engine.Store(nil)
		return
	}
	s.engine.Store(&e)
}

// maxReconcileTime is the duration after which a reconcile counts as stuck.
const maxReconcileTime = 5 * time.Minute

// alive reports that no reconcile is stuck. It does not depend on the API.
func (s *Stats) alive() bool {
	began := s.busySince.Load()
	return began == 0 || time.Since(time.Unix(0, began)) < maxReconcileTime
}
