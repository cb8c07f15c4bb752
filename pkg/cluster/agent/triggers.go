// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
)

// trigger is a reason to reconcile. The queue has at most one entry per reason.
type trigger string

const (
	clusterChanged trigger = "cluster-changed" // an object changed, or a delay that a reconcile asked for is over
	hostChanged    trigger = "host-changed"    // routes, the engine, an attached program or the API server's address changed
	periodicResync trigger = "periodic-resync" // ResyncPeriod is over
)

const (
	// clusterDebounce is how long changes of the cluster are collected before a reconcile.
	clusterDebounce = 200 * time.Millisecond
	// clusterDebouncePerNode extends clusterDebounce, by one second at 5,000 nodes.
	clusterDebouncePerNode = 200 * time.Microsecond
	// routeDebounce is how long changes of the host's routes are collected before a reconcile.
	routeDebounce = time.Second
)

// triggerClusterChanged requests a reconcile because the cluster changed. The delay grows with the cluster: in a larger one, a
// reconcile costs more and changes are more frequent.
func (a *Agent) triggerClusterChanged() {
	a.requested.Add(1)
	a.queue.AddAfter(clusterChanged, clusterDebounce+time.Duration(a.cluster.size())*clusterDebouncePerNode)
}

// triggerHostChanged requests a reconcile because something on the host changed.
func (a *Agent) triggerHostChanged() { a.queue.Add(hostChanged) }

// triggerEngineChanged requests a reconcile with another engine, at once, however often those without one have failed.
func (a *Agent) triggerEngineChanged() {
	a.queue.Forget(hostChanged)
	a.queue.Add(hostChanged)
}

// triggerWhenSynced requests a reconcile once the informers have the node's own objects, and again once they have the whole cluster.
func (a *Agent) triggerWhenSynced(ctx context.Context) {
	for _, next := range []struct {
		informers []cache.SharedIndexInformer
		trigger   trigger
	}{{a.cluster.ownInformers(), hostChanged}, {a.cluster.informers(), clusterChanged}} {
		for _, i := range next.informers {
			select {
			case <-i.HasSyncedChecker().Done():
			case <-ctx.Done():
				return
			}
		}
		a.queue.Add(next.trigger)
	}
}

// triggerPeriodically requests a reconcile each ResyncPeriod, with jitter: agents that started together must not all write at once.
func (a *Agent) triggerPeriodically(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait.Jitter(a.cfg.ResyncPeriod, 0.2)):
			a.queue.Add(periodicResync)
		}
	}
}
