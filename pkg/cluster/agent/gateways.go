// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// gatewayWatcher finds the other gateways of this node's location from which nothing arrives, if this node is a gateway.
type gatewayWatcher struct {
	gatewayWatch *background              // polls the engine; nil: there were no other gateways yet
	monitor      mesh.GatewayMonitor      // while the goroutine runs, it alone uses it
	unreachable  atomic.Pointer[[]string] // names, in order; nil: none
	resumed      bool                     // unreachable includes those that an earlier agent published
}

// gatewayPollInterval is the time between two polls. Each costs a gateway what reading the status of its peers costs.
const gatewayPollInterval = time.Second

// forwardingCheckInterval is the time between two checks of a gateway that does not forward: nothing reports that an administrator allowed it.
const forwardingCheckInterval = 10 * time.Second

// startGatewayWatch starts the goroutine if the plan has other gateways of this node's location. A change requests a reconcile, which publishes it.
func (m *meshReconciler) startGatewayWatch(peers []mesh.Peer) {
	names := map[noise.PublicKey]string{}
	for i := range peers {
		if peers[i].CoGateway {
			names[peers[i].Key] = peers[i].Node
		}
	}
	if len(names) == 0 {
		m.forgetGateways()
		return
	}
	engine := m.engine
	m.gatewayWatch = startBackground(func(ctx context.Context) {
		for {
			m.pollGateways(names, engine.Status().Peers)
			select {
			case <-ctx.Done():
				return
			case <-engine.Done():
				return
			case <-time.After(gatewayPollInterval):
			}
		}
	})
}

// forgetGateways forgets what is known about other gateways, while no goroutine runs.
func (m *meshReconciler) forgetGateways() {
	m.monitor, m.resumed = mesh.GatewayMonitor{}, false
	m.unreachable.Store(nil)
}

// resumeGateways continues once with the silent gateways that an earlier agent of this node published. Without them all nodes would send to a silent
// gateway again, until this agent finds that it is silent. The goroutine may run already, for the saved tunnel: configurePeers starts it again.
func (m *meshReconciler) resumeGateways(in *reconcileInput) {
	if m.resumed || in.spec.GatewayOf == "" {
		return
	}
	m.resumed = true
	g := in.lastStatus.Gateway
	if g == nil || len(g.Unreachable) == 0 {
		return
	}
	m.gatewayWatch.stop()
	m.monitor.Resume(g.Unreachable)
	names := slices.Concat(g.Unreachable, m.unreachableGateways())
	slices.Sort(names)
	m.unreachable.Store(new(slices.Compact(names)))
}

// pollGateways evaluates what was received from gateways with the given names by their keys. From one that the engine lacks, nothing was.
func (m *meshReconciler) pollGateways(names map[noise.PublicKey]string, have []config.PeerStatus) {
	received := map[string]uint64{}
	for _, name := range names {
		received[name] = 0
	}
	for i := range have {
		if name, is := names[have[i].PublicKey]; is {
			received[name] += have[i].RxBytes
		}
	}
	before, now := m.unreachableGateways(), m.monitor.Update(time.Now(), received)
	if slices.Equal(before, now) {
		return
	}
	m.unreachable.Store(&now)
	if len(now) > 0 {
		m.cfg.Log.Warn("nothing arrives from other gateways of this location, publishing that so that nodes use gateways that answer", "gateways", now)
	} else {
		m.cfg.Log.Info("all gateways of this location answer", "previously_unreachable", before)
	}
	m.trigger()
}

// unreachableGateways returns the names of the gateways from which nothing arrives.
func (m *meshReconciler) unreachableGateways() []string {
	if names := m.unreachable.Load(); names != nil {
		return *names
	}
	return nil
}

// addLocation adds this node's location to its status, and what it reports as a gateway.
func (m *meshReconciler) addLocation(in *reconcileInput, r *result) {
	r.status.Location = cmp.Or(in.spec.GatewayOf, v1alpha1.Location(in.location))
	if in.spec.GatewayOf == "" {
		return
	}
	unreachable := m.unreachableGateways()
	r.status.Gateway = &v1alpha1.GatewayStatus{Forwards: true, Unreachable: slices.Clone(unreachable[:min(len(unreachable), v1alpha1.MaxUnreachable)])}
	forwards := in.self.PodCIDRs
	if len(forwards) == 0 {
		forwards = r.routing.Routes
	}
	if err := m.cfg.Network.CheckForwarding(m.cfg.Tunnel, forwards); err != nil {
		r.status.Gateway.Forwards = false
		r.notes = append(r.notes, fmt.Sprintf("this node is no gateway of its location %s: %v", in.spec.GatewayOf, err))
		r.requeueAfter = soonest(r.requeueAfter, forwardingCheckInterval)
	}
}

// countBehind returns the number of nodes that are reached by gateways.
func countBehind(peers []mesh.Peer) (n int) {
	for i := range peers {
		n += len(peers[i].Behind)
	}
	return n
}
