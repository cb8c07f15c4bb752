// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/kube/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/mesh"
	"github.com/ropewalk/ropewalk/pkg/metrics"
)

const (
	// applyConfigs is how long a burst of changes may last before it is acted on.
	clusterDebounce = 200 * time.Millisecond
	// clusterDebouncePerNode makes that a second at 5,000 nodes.
	clusterDebouncePerNode = 200 * time.Microsecond
	// writeEchoTimeout is how long what was written may take to come back.
	writeEchoTimeout = 10 * time.Second
	// routeDebounce is how long a burst of changes of the host's routes may last.
	routeDebounce = time.Second
)

// Agent is one node's.
type Agent struct {
	cfg               Config
	client            *client
	cluster           *cluster
	api               *apiDialer
	queue             workqueue.TypedRateLimitingInterface[trigger]
	active            modeReconciler  // of the present mode; nil: none yet
	resumedReconciler *meshReconciler // which carries while there is no mode yet; nil: none does
	mode              mesh.Mode       // the present one
	requested         atomic.Uint64
	handled           uint64 // probes, at the last look
	persisted         persistedState
	saveFailed        bool           // persistedState is not on disk
	lastSpreadPort    uint16         // the port that was spread for at last, as the cluster knows
	countsDueAt       time.Time      // when changed counts are told; zero: none changed
	loggedProblems    []mesh.Problem // that were logged
	created           struct {       // the RopewalkNode
		node types.UID
		at   time.Time
	}
	lastWrite writtenStatus // status
	stats     Stats
}

// handle is why to look; there is one queue entry per reason.
type trigger string

const (
	clusterChanged trigger = "changed" // the cluster did, or it is time to
	hostChanged    trigger = "host"    // something on the host did
	periodicResync trigger = "full"    // ropewalkNodeUID time to time
)

// active does what a mode is about.
type modeReconciler interface {
	// reconcile makes the node be as the cluster wants it, and returns what to tell of it, as far as it got.
	reconcile(ctx context.Context, look reconcileInput) (result, error)
	// tearDown ends it, on a node that opts out or changes its mode.
	tearDown(ctx context.Context) error
	// stop lets go of it as the process ends: what can go on without, goes on.
	stop()
}

// mustReconcile is what a doer goes by.
type reconcileInput struct {
	nodes              []mesh.Node
	self               mesh.Node
	spec               v1alpha1.NodeSpec
	lastStatus         v1alpha1.NodeStatus // what the cluster has of this node
	hostMayHaveChanged bool                // the host may be another than before
}

// result is what doing came to.
type result struct {
	status   v1alpha1.NodeStatus // what the mode knows of it
	changes  int
	repaired int      // of the changes, those of what somebody else on the host is known to have changed
	notes    []string // what is not as it should be with this node, for people
	// problems are those of other nodes. They go to the log and a metric: in a status, one node's would make all others
	// write theirs.
	problems     []mesh.Problem
	routing      *Routing             // what goes into the tunnel; nil: there is none
	saved        *savedTunnel         // what of the tunnel the next agent begins with; nil: there is none
	requeueAfter time.Duration        // when to look again; 0: when something happens
	engine       Engine               // the tunnel's; nil: there is none
	spread       metrics.SpreadSource // what spreads; nil: nothing
}

// foundNothing tells that an error kept anything from being found out.
func (r *result) foundNothing(err error) bool { return err != nil && len(r.status.Endpoints) == 0 }

// New returns an agent that does nothing yet.
func New(cfg Config) (*Agent, error) {
	a := &Agent{
		cfg:   cfg.withDefaults(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[trigger](100*time.Millisecond, time.Minute)),
	}
	a.stats.perPeerMetrics = a.cfg.PerPeerMetrics
	api := rest.CopyConfig(a.cfg.API)
	a.api = &apiDialer{literal: apiAddrs(api.Host), next: api.Dial, onNewAddr: a.triggerHostChanged}
	api.Dial = a.api.dial
	var err error
	if a.client, err = newClient(api); err != nil {
		return nil, err
	}
	a.cluster, err = newCluster(a.client, a.cfg.Node, a.triggerClusterChanged)
	return a, err
}

// triggerClusterChanged has all looked at soon, and the later the larger the cluster: as it grows, a look costs more, and more happens.
func (a *Agent) triggerClusterChanged() {
	a.requested.Add(1)
	a.queue.AddAfter(clusterChanged, clusterDebounce+time.Duration(a.cluster.size())*clusterDebouncePerNode)
}

// trigger looks at all once more, because something on the host changed.
func (a *Agent) triggerHostChanged() { a.queue.Add(hostChanged) }

// Run works until ctx ends, and leaves in place what outlives the process. Errors of the API or of the host are logged
// and tried again; the one returned is of the Config.
func (a *Agent) Run(ctx context.Context) error {
	if a.cfg.Mode != mesh.ModeSpread && a.cfg.Mode != mesh.ModeMesh {
		return fmt.Errorf("mode %q: want spread or mesh", a.cfg.Mode)
	}
	a.restorePersisted()
	a.cluster.start(ctx)
	go a.triggerPeriodically(ctx)
	if err := hostnet.WatchRoutes(ctx, func() { a.queue.AddAfter(hostChanged, routeDebounce) }); err != nil {
		a.cfg.Log.Warn("changed routes are found only now and then", "every", a.cfg.ResyncPeriod, "error", err)
	}
	context.AfterFunc(ctx, a.queue.ShutDown)
	go a.triggerWhenSynced(ctx)
	for a.processNext(ctx) {
	}
	if a.resumedReconciler != nil {
		a.resumedReconciler.stop()
	}
	if a.active != nil {
		a.active.stop()
	}
	return nil
}

// triggerWhenSynced has all looked at once the picture of the cluster is whole.
func (a *Agent) triggerWhenSynced(ctx context.Context) {
	for _, i := range []cache.SharedIndexInformer{a.cluster.nodes, a.cluster.agents} {
		select {
		case <-i.HasSyncedChecker().Done():
		case <-ctx.Done():
			return
		}
	}
	a.queue.Add(clusterChanged)
}

func (a *Agent) triggerPeriodically(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait.Jitter(a.cfg.ResyncPeriod, 0.2)): // nodes that began at once do not all write at once
			a.queue.Add(periodicResync)
		}
	}
}

// step waits for work and does it. False is the end.
func (a *Agent) processNext(ctx context.Context) bool {
	w, end := a.queue.Get()
	if end {
		return false
	}
	defer a.queue.Done(w)
	a.stats.busySince.Store(time.Now().UnixNano())
	err := a.handle(ctx, w)
	a.stats.busySince.Store(0)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		a.stats.Failures.Add(1)
		a.cfg.Log.Warn("not all is as it should be; trying again", "error", err)
		a.queue.AddRateLimited(w)
	default:
		a.queue.Forget(w)
	}
	return true
}

// handle makes all as it should be. As long as what is missing of the cluster may only be on its way, that is what it was before.
func (a *Agent) handle(ctx context.Context, w trigger) error {
	if a.cluster.synced() {
		return a.reconcile(ctx, w)
	}
	if w == clusterChanged {
		return nil // see triggerWhenSynced
	}
	return a.applyPersisted()
}

var (
	// errNodeNotFound says that the API does not have the node (yet).
	errNodeNotFound = errors.New("the cluster has no node of that name")
	// errStaleRopewalkNode says that garbage is yet to be collected.
	errStaleRopewalkNode = errors.New("the RopewalkNode is of an earlier node of that name, and goes before there can be another")
)

// reconcile makes all as it should be, and tells it. What is not done is told, too.
func (a *Agent) reconcile(ctx context.Context, w trigger) error {
	asked := a.requested.Load()
	unasked := asked == a.handled
	n, rn, err := a.ownObjects(ctx)
	if err != nil {
		return a.carryOn(n, err)
	}
	rn = rn.DeepCopy()
	rn.Spec = a.specOf(n, rn)
	res, err := a.reconcileMode(ctx, n, rn, w)
	a.logProblems(res.problems)
	a.stats.Ready.Store(err == nil)
	if err == nil {
		a.handled = asked
		a.savePersisted(persistedState{Node: n.UID, Name: n.Name, Mode: a.mode, Spec: rn.Spec, Routing: res.routing, Tunnel: res.saved})
	}
	a.stats.Reconciles.Add(1)
	res.engine = a.activeEngine()
	a.stats.update(&res, err)
	drift := res.repaired
	if err == nil && w != clusterChanged && unasked {
		drift = res.changes
	}
	a.reportDrift(drift)
	return errors.Join(err, a.publishStatus(ctx, rn, res, err))
}

// reportDrift tells of changes that undid what somebody else did.
func (a *Agent) reportDrift(changes int) {
	if changes > 0 {
		a.stats.Drift.Add(uint64(changes))
		a.cfg.Log.Warn("what somebody else on the host changed is put right", "changes", changes)
	}
}

// carryOn keeps the tunnel as it was last while the cluster does not say what this node should be. One that this agent made ends to be
// looked after when n has become another node than it was of: its pods' addresses may be somebody else's by now.
func (a *Agent) carryOn(n *node, why error) error {
	if errors.Is(why, errNodeNotFound) || errors.Is(why, errStaleRopewalkNode) {
		a.stats.Ready.Store(false)
	}
	if a.active == nil {
		return errors.Join(why, a.applyPersisted())
	}
	m := a.mesher()
	if m == nil || n != nil && n.UID != a.persisted.Node {
		return why
	}
	changes, err := m.reapply()
	a.stats.Changes.Add(uint64(changes))
	a.stats.setEngine(m.engine)
	a.reportDrift(changes)
	return errors.Join(why, err)
}

// ownObjects returns this node as the cluster has it.
func (a *Agent) ownObjects(ctx context.Context) (n *node, rn *v1alpha1.RopewalkNode, err error) {
	n, rn = a.cluster.node(a.cfg.Node)
	switch {
	case n == nil:
		err = fmt.Errorf("%w: %s", errNodeNotFound, a.cfg.Node)
	case rn == nil:
		rn, err = &v1alpha1.RopewalkNode{}, a.createRopewalkNode(ctx, n)
	default:
		a.created.at = time.Time{}
		if !ownedBy(rn, n) {
			err = fmt.Errorf("%w: %s", errStaleRopewalkNode, a.cfg.Node)
		}
	}
	return n, rn, err
}

// activeEngine is the tunnel's, whatever became of a look; nil: none runs.
func (a *Agent) activeEngine() Engine {
	m := a.mesher()
	if m == nil {
		return nil
	}
	return m.engine
}

// meshReconciler is the one that carries; nil: none does.
func (a *Agent) mesher() *meshReconciler {
	m, _ := a.active.(*meshReconciler)
	return cmp.Or(m, a.resumedReconciler)
}

// createRopewalkNode creates the node's RopewalkNode, unless it has and only not seen it yet.
func (a *Agent) createRopewalkNode(ctx context.Context, n *node) error {
	if a.created.node == n.UID && time.Since(a.created.at) < writeEchoTimeout {
		return nil
	}
	err := a.client.create(ctx, n)
	if err == nil {
		a.created.node, a.created.at = n.UID, time.Now()
	}
	return err
}

// reconcile has the mode's doer do it.
func (a *Agent) reconcileMode(ctx context.Context, n *node, rn *v1alpha1.RopewalkNode, w trigger) (result, error) {
	mode := a.modeFor(rn.Spec)
	a.lastSpreadPort = lastSpreadPort(&rn.Status)
	if err := a.switchMode(ctx, mode); err != nil {
		return result{}, err
	}
	own := toMesh(n, rn)
	own.OptOut = rn.Spec.OptOut // which may be remembered
	own.Endpoint, _ = netip.ParseAddr(rn.Spec.Endpoint)
	own.Addrs = mesh.UsableAddrs(own.Addrs) // a status with others is refused
	if own.OptOut {
		return result{notes: []string{"the node opted out"}}, a.active.tearDown(ctx)
	}
	res, err := a.active.reconcile(ctx, reconcileInput{
		nodes: a.cluster.all(), self: own, spec: rn.Spec, lastStatus: rn.Status, hostMayHaveChanged: w != clusterChanged,
	})
	res.status.Mode = v1alpha1.Mode(mode)
	if res.requeueAfter > 0 {
		a.queue.AddAfter(clusterChanged, res.requeueAfter)
	}
	return res, err
}

// modeFor is the mode that administrators ask for.
func (a *Agent) modeFor(spec v1alpha1.NodeSpec) mesh.Mode {
	return cmp.Or(mesh.Mode(spec.Mode), a.cfg.Mode)
}

// logProblems tells of problems that were not there before.
func (a *Agent) logProblems(problems []mesh.Problem) {
	for _, p := range problems {
		if !slices.Contains(a.loggedProblems, p) {
			a.cfg.Log.Warn("a node cannot be dealt with as it wants", "node", p.Node, "why", p.Reason)
		}
	}
	a.loggedProblems = problems
}

// switchMode changes the mode. What an earlier agent left in the other one is undone, too.
func (a *Agent) switchMode(ctx context.Context, mode mesh.Mode) error {
	if a.active != nil && mode == a.mode {
		return nil
	}
	spreader, mesher := newSpreadReconciler(a.cfg, a.lastSpreadPort, a.triggerHostChanged), a.resumedReconciler
	if mesher == nil {
		mesher = newMeshReconciler(a.cfg, a.persisted.Tunnel, a.api.all, a.triggerHostChanged)
	}
	var next, before modeReconciler = spreader, mesher
	switch mode {
	case mesh.ModeSpread:
	case mesh.ModeMesh:
		next, before = mesher, spreader
	default:
		return fmt.Errorf("mode %q is none", mode)
	}
	if a.active != nil {
		before = a.active
	}
	switch err := before.tearDown(ctx); {
	case err == nil:
	case a.active == nil && mode == mesh.ModeMesh: // programs that nobody's traffic meets harm nobody
		a.cfg.Log.Warn("what an earlier agent may have attached stays", "error", err)
	default:
		return fmt.Errorf("ending another mode than %s: %w", mode, err)
	}
	a.active, a.mode, a.resumedReconciler = next, mode, nil
	return nil
}
