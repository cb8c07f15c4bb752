// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/pkg/cluster/meshmode"
	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
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
	// ExternalPeers is the number of RopewalkPeers that this node has as peers, and RefusedPeers
	// the number of RopewalkPeers that no node has.
	ExternalPeers, RefusedPeers atomic.Int64
	// WithoutTunnel is the number of nodes that have no tunnel to this one, in mesh mode.
	WithoutTunnel atomic.Int64
	// RefusedPrefixes is the number of prefixes and addresses of other nodes that are not used, because they are not theirs alone.
	RefusedPrefixes atomic.Int64
	// Cleartext is 1 while traffic for pods of nodes without a tunnel, or with unknown pod prefixes, leaves unencrypted.
	Cleartext atomic.Int64
	// NodeRoutes is the number of addresses of other nodes that traffic reaches through the
	// tunnel. ClearNodes is the number of peers to which traffic goes unencrypted although this
	// node would encrypt it.
	NodeRoutes, ClearNodes atomic.Int64
	// ForeignWrites counts writes of other programs to this node's objects.
	ForeignWrites atomic.Uint64
	// Ready reports whether the last reconcile succeeded. It is false once the cluster has no such node.
	Ready atomic.Bool

	seen       atomic.Pointer[seenNow]            // nil: not in mode mesh
	takesPart  atomic.Bool                        // the node is not excluded
	conditions atomic.Pointer[[]metav1.Condition] // as last published, or about to be; nil: none yet

	filtering atomic.Bool // the filter for unencrypted packets is installed

	busySince atomic.Int64 // start of the running reconcile, in nanoseconds of Unix time; 0: none runs

	spread atomic.Pointer[metrics.SpreadSource] // nil: no eBPF programs are attached
}

// seenNow returns what a meshmode.Prover has seen.
type seenNow func() (proof.Summary, meshmode.GuardCounts)

// update records the outcome of a reconcile. If it failed before it found the endpoints, the previous gauges stay.
func (s *Stats) update(r *result, err error) {
	s.Changes.Add(uint64(r.changes))
	if r.failedWithoutEndpoints(err) {
		return
	}
	s.Peers.Store(int64(r.status.Peers))
	s.SpreadsTo.Store(int64(r.status.SpreadsTo))
	s.Problems.Store(int64(len(r.problems)))
	s.WithoutTunnel.Store(int64(r.withoutTunnel))
	s.RefusedPrefixes.Store(int64(r.refusedPrefixes))
	s.NodeRoutes.Store(int64(r.nodeRoutes))
	s.ClearNodes.Store(int64(r.clearNodes))
	s.ExternalPeers.Store(int64(r.externalPeers))
	if r.external != nil {
		s.RefusedPeers.Store(int64(len(r.external.refused)))
	}
	s.Cleartext.Store(oneIf(r.cleartext))
	s.filtering.Store(r.filtering)
	if r.spread == nil {
		s.spread.Store(nil)
		return
	}
	s.spread.Store(&r.spread)
}

// ready returns an error if pods of the node cannot be expected to reach others. The last
// reconcile failed, or in mode mesh most peers do not answer.
func (s *Stats) ready() error {
	if !s.Ready.Load() {
		return errors.New("the last reconcile failed, or none has run yet")
	}
	if seen := s.seen.Load(); seen != nil {
		p, _ := (*seen)()
		if reason := p.CutOff(); reason != "" {
			return errors.New(reason)
		}
	}
	return nil
}

// setReady sets Ready, unless s is nil.
func (s *Stats) setReady(ready bool) {
	if s != nil {
		s.Ready.Store(ready)
	}
}

func oneIf(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

// maxReconcileTime is the duration after which a reconcile counts as stuck.
const maxReconcileTime = 5 * time.Minute

var errReconcileStuck = errors.New("a reconcile does not end")

// alive returns an error if a reconcile is stuck. It does not depend on the API.
func (s *Stats) alive() error {
	if began := s.busySince.Load(); began != 0 && time.Since(time.Unix(0, began)) >= maxReconcileTime {
		return errReconcileStuck
	}
	return nil
}
