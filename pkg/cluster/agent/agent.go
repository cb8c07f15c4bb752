// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// Agent reconciles one node. The goroutine of Run uses all fields but queue, cluster, api,
// requested and stats, which are safe for concurrent use.
type Agent struct {
	cfg     Config
	client  *client
	cluster *cluster
	api     *apiDialer
	queue   workqueue.TypedRateLimitingInterface[trigger]
	state   state
	active  modeReconciler // of the mode; nil: Run has not begun
	stateStore
	publisher
	driftDetector
	intent         *intent // the last known one, in mesh mode; nil: none was read ever
	external       externalStatus
	created        creation
	loggedProblems []mesh.Problem // of the last reconcile
	stats          Stats
	lock           instanceLock
	released       bool // unused memory was released once
}

// creation is the last RopewalkNode that the agent created and has not seen in its informer yet.
type creation struct {
	node   types.UID
	at     time.Time
	object *v1alpha1.RopewalkNode
}

// retryMin and retryMax bound the exponential backoff after a failed reconcile.
const retryMin, retryMax = 100 * time.Millisecond, time.Minute

// New returns an agent. It changes nothing until Run.
func New(cfg Config) (*Agent, error) {
	a := &Agent{
		cfg:   cfg.withDefaults(),
		state: stateSyncing,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[trigger](retryMin, retryMax)),
	}
	a.instance = rand.Text()
	a.cfg.proved = func() { a.queue.Add(clusterChanged) }
	api := rest.CopyConfig(a.cfg.API)
	a.api = &apiDialer{literal: apiAddrs(api.Host), next: api.Dial, onNewAddr: a.triggerHostChanged}
	api.Dial = a.api.dial
	var err error
	if a.client, err = newClient(api); err != nil {
		return nil, err
	}
	if a.cluster, err = newCluster(a.client, a.cfg.Node, a.cfg.Propagation, a.cfg.Log, a.triggerClusterChanged); err != nil {
		return nil, err
	}
	if a.cfg.Mode == mesh.ModeMesh {
		if a.cluster.mesh, err = newMeshInformer(a.client, a.triggerClusterChanged); err != nil {
			return nil, err
		}
	}
	if a.cluster.external, err = newExternalPeers(a.client, a.cfg.Log, a.triggerClusterChanged); err != nil {
		return nil, err
	}
	if a.cluster.endpoints, err = newAPIEndpoints(api, a.cfg.Log, a.triggerClusterChanged); err != nil {
		return nil, err
	}
	a.cluster.blocks, err = newPodBlocks(api, a.cfg.PodCIDRSource, a.triggerClusterChanged)
	return a, err
}

// Stats returns the agent's counters.
func (a *Agent) Stats() *Stats { return &a.stats }

// Run reconciles the node until ctx ends. On return, the tunnel's interface and routes and the attached programs stay in place.
// Errors of the API and of the host are logged and retried. The returned error reports an invalid Config, or the
// state of an agent of the other mode.
func (a *Agent) Run(ctx context.Context) error {
	if a.cfg.Mode != mesh.ModeSpread && a.cfg.Mode != mesh.ModeMesh {
		return fmt.Errorf("mode %q: want spread or mesh", a.cfg.Mode)
	}
	a.lock.wait(ctx, &a.cfg)
	if err := a.restorePersisted(); err != nil {
		a.lock.release()
		return err
	}
	a.cluster.start(ctx)
	go a.triggerPeriodically(ctx)
	go a.cfg.Engine.Watch(ctx, a.triggerEngineChanged)
	if err := hostnet.WatchRoutes(ctx, func() { a.queue.AddAfter(hostChanged, routeDebounce) }); err != nil {
		a.cfg.Log.Warn("watching the host's routes failed: until the agent restarts, routes that others change are repaired only at the periodic reconcile", "interval", a.cfg.ResyncPeriod, "error", err)
	}
	context.AfterFunc(ctx, a.queue.ShutDown)
	go a.triggerWhenSynced(ctx)
	for a.processNext(ctx) {
	}
	a.advance(eventStopped)
	a.active.stop()
	a.lock.release()
	return nil
}

// processNext waits for a trigger and handles it. It returns false once the queue is shut down or ctx has ended. A trigger that is left then is
// not handled.
func (a *Agent) processNext(ctx context.Context) bool {
	t, shutDown := a.queue.Get()
	if shutDown {
		return false
	}
	defer a.queue.Done(t)
	if ctx.Err() != nil {
		return false
	}
	a.stats.busySince.Store(time.Now().UnixNano())
	err := a.handle(ctx, t)
	a.stats.busySince.Store(0)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		a.stats.Failures.Add(1)
		a.retry(t, err)
	default:
		a.queue.Forget(t)
	}
	return true
}

// retry logs a failed reconcile and queues its trigger again, with exponential backoff.
func (a *Agent) retry(t trigger, err error) {
	attempt := a.queue.NumRequeues(t) + 1
	after := min(retryMin<<min(attempt-1, 16), retryMax)
	a.cfg.Log.Warn("reconcile failed, retrying", "attempt", attempt, "after", after, "error", err)
	a.queue.AddRateLimited(t)
}

// handle reconciles the node. Before the informers have synced, missing objects prove nothing: the persisted state applies.
func (a *Agent) handle(ctx context.Context, t trigger) error {
	if a.cluster.synced() {
		a.advance(eventSynced)
	}
	switch {
	case a.state != stateSyncing:
		return a.reconcile(ctx, t)
	case t == clusterChanged:
		return nil // triggerWhenSynced adds it again
	default:
		return errors.Join(a.applyLastDesired(nil), a.reportMissingDefinition(ctx))
	}
}

// reportMissingDefinition publishes that the cluster has no RopewalkAnnouncements, for which the agent would wait in silence.
func (a *Agent) reportMissingDefinition(ctx context.Context) error {
	if !allSynced(a.cluster.ownInformers()) {
		return nil
	}
	n, rn, err := a.ownObjects(ctx)
	if err == nil {
		err = a.checkDefinitions(ctx, n)
	}
	if errors.Is(err, errOutdatedCRD) {
		err = errors.Join(err, a.publishOutdated(ctx, rn, err))
	}
	return err
}
