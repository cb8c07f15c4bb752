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
	// settle is how long a burst of changes may last before it is acted on.
	settle = 200 * time.Millisecond
	// settlePerNode makes that a second at 5,000 nodes.
	settlePerNode = 200 * time.Microsecond
	// unseen is how long what was written may take to come back.
	unseen = 10 * time.Second
	// rerouted is how long a burst of changes of the host's routes may last.
	rerouted = time.Second
)

// Agent is one node's.
type Agent struct {
	cfg     Config
	client  *client
	cluster *cluster
	api     *dialled
	queue   workqueue.TypedRateLimitingInterface[work]
	doer    doer      // of the present mode; nil: none yet
	early   *mesher   // which carries while there is no mode yet; nil: none does
	mode    mesh.Mode // the present one
	asked   atomic.Uint64
	done    uint64 // asked, at the last look
	memory  memory
	unkept  bool           // memory is not on disk
	earlier uint16         // the port that was spread for at last, as the cluster knows
	counts  time.Time      // when changed counts are told; zero: none changed
	notes   []mesh.Problem // that were logged
	made    struct {       // the RopewalkNode
		node types.UID
		at   time.Time
	}
	last  written // status
	stats Stats
}

// work is why to look; there is one queue entry per reason.
type work string

const (
	changed work = "changed" // the cluster did, or it is time to
	onHost  work = "host"    // something on the host did
	full    work = "full"    // from time to time
)

// doer does what a mode is about.
type doer interface {
	// do makes the node be as the cluster wants it, and returns what to tell of it, as far as it got.
	do(ctx context.Context, look look) (result, error)
	// undo ends it, on a node that opts out or changes its mode.
	undo(ctx context.Context) error
	// leave lets go of it as the process ends: what can go on without, goes on.
	leave()
}

// look is what a doer goes by.
type look struct {
	nodes []mesh.Node
	own   mesh.Node
	spec  v1alpha1.NodeSpec
	told  v1alpha1.NodeStatus // what the cluster has of this node
	fresh bool                // the host may be another than before
}

// result is what doing came to.
type result struct {
	status  v1alpha1.NodeStatus // what the mode knows of it
	changes int
	mended  int      // of the changes, those of what somebody else on the host is known to have changed
	notes   []string // what is not as it should be with this node, for people
	// problems are those of other nodes. They go to the log and a metric: in a status, one node's would make all others
	// write theirs.
	problems []mesh.Problem
	routing  *Routing             // what goes into the tunnel; nil: there is none
	kept     *kept                // what of the tunnel the next agent begins with; nil: there is none
	wait     time.Duration        // when to look again; 0: when something happens
	engine   Engine               // the tunnel's; nil: there is none
	spread   metrics.SpreadSource // what spreads; nil: nothing
}

// lost tells that an error kept anything from being found out.
func (r *result) lost(err error) bool { return err != nil && len(r.status.Endpoints) == 0 }

// New returns an agent that does nothing yet.
func New(cfg Config) (*Agent, error) {
	a := &Agent{
		cfg:   cfg.withDefaults(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[work](100*time.Millisecond, time.Minute)),
	}
	a.stats.perPeer = a.cfg.PerPeer
	api := rest.CopyConfig(a.cfg.API)
	a.api = &dialled{known: apiAddrs(api.Host), next: api.Dial, found: a.again}
	api.Dial = a.api.dial
	var err error
	if a.client, err = newClient(api); err != nil {
		return nil, err
	}
	a.cluster, err = newCluster(a.client, a.cfg.Node, a.touch)
	return a, err
}

// touch has all looked at soon, and the later the larger the cluster: as it grows, a look costs more, and more happens.
func (a *Agent) touch() {
	a.asked.Add(1)
	a.queue.AddAfter(changed, settle+time.Duration(a.cluster.size())*settlePerNode)
}

// again looks at all once more, because something on the host changed.
func (a *Agent) again() { a.queue.Add(onHost) }

// Run works until ctx ends, and leaves in place what outlives the process. Errors of the API or of the host are logged
// and tried again; the one returned is of the Config.
func (a *Agent) Run(ctx context.Context) error {
	if a.cfg.Mode != mesh.ModeSpread && a.cfg.Mode != mesh.ModeMesh {
		return fmt.Errorf("mode %q: want spread or mesh", a.cfg.Mode)
	}
	a.guard()
	a.cluster.run(ctx)
	go a.tick(ctx)
	if err := hostnet.WatchRoutes(ctx, func() { a.queue.AddAfter(onHost, rerouted) }); err != nil {
		a.cfg.Log.Warn("changed routes are found only now and then", "every", a.cfg.Full, "error", err)
	}
	context.AfterFunc(ctx, a.queue.ShutDown)
	go a.whenWhole(ctx)
	for a.next(ctx) {
	}
	if a.early != nil {
		a.early.leave()
	}
	if a.doer != nil {
		a.doer.leave()
	}
	return nil
}

// whenWhole has all looked at once the picture of the cluster is whole.
func (a *Agent) whenWhole(ctx context.Context) {
	for _, i := range []cache.SharedIndexInformer{a.cluster.nodes, a.cluster.agents} {
		select {
		case <-i.HasSyncedChecker().Done():
		case <-ctx.Done():
			return
		}
	}
	a.queue.Add(changed)
}

func (a *Agent) tick(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait.Jitter(a.cfg.Full, 0.2)): // nodes that began at once do not all write at once
			a.queue.Add(full)
		}
	}
}

// next waits for work and does it. False is the end.
func (a *Agent) next(ctx context.Context) bool {
	w, end := a.queue.Get()
	if end {
		return false
	}
	defer a.queue.Done(w)
	a.stats.began.Store(time.Now().UnixNano())
	err := a.work(ctx, w)
	a.stats.began.Store(0)
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

// work makes all as it should be. As long as what is missing of the cluster may only be on its way, that is what it was before.
func (a *Agent) work(ctx context.Context, w work) error {
	if a.cluster.synced() {
		return a.reconcile(ctx, w)
	}
	if w == changed {
		return nil // see whenWhole
	}
	return a.resume()
}

var (
	// errNoNode says that the API does not have the node (yet).
	errNoNode = errors.New("the cluster has no node of that name")
	// errEarlier says that garbage is yet to be collected.
	errEarlier = errors.New("the RopewalkNode is of an earlier node of that name, and goes before there can be another")
)

// reconcile makes all as it should be, and tells it. What is not done is told, too.
func (a *Agent) reconcile(ctx context.Context, w work) error {
	asked := a.asked.Load()
	unasked := asked == a.done
	n, rn, err := a.own(ctx)
	if err != nil {
		return a.carryOn(n, err)
	}
	rn = rn.DeepCopy()
	rn.Spec = a.specOf(n, rn)
	res, err := a.do(ctx, n, rn, w)
	a.log(res.problems)
	a.stats.Ready.Store(err == nil)
	if err == nil {
		a.done = asked
		a.remember(memory{Node: n.UID, Name: n.Name, Mode: a.mode, Spec: rn.Spec, Routing: res.routing, Tunnel: res.kept})
	}
	a.stats.Reconciles.Add(1)
	res.engine = a.engine()
	a.stats.note(&res, err)
	drift := res.mended
	if err == nil && w != changed && unasked {
		drift = res.changes
	}
	a.drifted(drift)
	return errors.Join(err, a.tell(ctx, rn, res, err))
}

// drifted tells of changes that undid what somebody else did.
func (a *Agent) drifted(changes int) {
	if changes > 0 {
		a.stats.Drift.Add(uint64(changes))
		a.cfg.Log.Warn("what somebody else on the host changed is put right", "changes", changes)
	}
}

// carryOn keeps the tunnel as it was last while the cluster does not say what this node should be. One that this agent made ends to be
// looked after when n has become another node than it was of: its pods' addresses may be somebody else's by now.
func (a *Agent) carryOn(n *node, why error) error {
	if errors.Is(why, errNoNode) || errors.Is(why, errEarlier) {
		a.stats.Ready.Store(false)
	}
	if a.doer == nil {
		return errors.Join(why, a.resume())
	}
	m := a.mesher()
	if m == nil || n != nil && n.UID != a.memory.Node {
		return why
	}
	changes, err := m.renew()
	a.stats.Changes.Add(uint64(changes))
	a.stats.showEngine(m.engine)
	a.drifted(changes)
	return errors.Join(why, err)
}

// own returns this node as the cluster has it.
func (a *Agent) own(ctx context.Context) (n *node, rn *v1alpha1.RopewalkNode, err error) {
	n, rn = a.cluster.node(a.cfg.Node)
	switch {
	case n == nil:
		err = fmt.Errorf("%w: %s", errNoNode, a.cfg.Node)
	case rn == nil:
		rn, err = &v1alpha1.RopewalkNode{}, a.make(ctx, n)
	default:
		a.made.at = time.Time{}
		if !ownedBy(rn, n) {
			err = fmt.Errorf("%w: %s", errEarlier, a.cfg.Node)
		}
	}
	return n, rn, err
}

// engine is the tunnel's, whatever became of a look; nil: none runs.
func (a *Agent) engine() Engine {
	m := a.mesher()
	if m == nil {
		return nil
	}
	return m.engine
}

// mesher is the one that carries; nil: none does.
func (a *Agent) mesher() *mesher {
	m, _ := a.doer.(*mesher)
	return cmp.Or(m, a.early)
}

// make creates the node's RopewalkNode, unless it has and only not seen it yet.
func (a *Agent) make(ctx context.Context, n *node) error {
	if a.made.node == n.UID && time.Since(a.made.at) < unseen {
		return nil
	}
	err := a.client.create(ctx, n)
	if err == nil {
		a.made.node, a.made.at = n.UID, time.Now()
	}
	return err
}

// do has the mode's doer do it.
func (a *Agent) do(ctx context.Context, n *node, rn *v1alpha1.RopewalkNode, w work) (result, error) {
	mode := a.modeOf(rn.Spec)
	a.earlier = earlierPort(&rn.Status)
	if err := a.enter(ctx, mode); err != nil {
		return result{}, err
	}
	own := toMesh(n, rn)
	own.OptOut = rn.Spec.OptOut // which may be remembered
	own.Endpoint, _ = netip.ParseAddr(rn.Spec.Endpoint)
	own.Addrs = mesh.Usable(own.Addrs) // a status with others is refused
	if own.OptOut {
		return result{notes: []string{"the node opted out"}}, a.doer.undo(ctx)
	}
	res, err := a.doer.do(ctx, look{
		nodes: a.cluster.all(), own: own, spec: rn.Spec, told: rn.Status, fresh: w != changed,
	})
	res.status.Mode = v1alpha1.Mode(mode)
	if res.wait > 0 {
		a.queue.AddAfter(changed, res.wait)
	}
	return res, err
}

// modeOf is the mode that administrators ask for.
func (a *Agent) modeOf(spec v1alpha1.NodeSpec) mesh.Mode {
	return cmp.Or(mesh.Mode(spec.Mode), a.cfg.Mode)
}

// log tells of problems that were not there before.
func (a *Agent) log(problems []mesh.Problem) {
	for _, p := range problems {
		if !slices.Contains(a.notes, p) {
			a.cfg.Log.Warn("a node cannot be dealt with as it wants", "node", p.Node, "why", p.Why)
		}
	}
	a.notes = problems
}

// enter changes the mode. What an earlier agent left in the other one is undone, too.
func (a *Agent) enter(ctx context.Context, mode mesh.Mode) error {
	if a.doer != nil && mode == a.mode {
		return nil
	}
	spreader, mesher := newSpreader(a.cfg, a.earlier, a.again), a.early
	if mesher == nil {
		mesher = newMesher(a.cfg, a.memory.Tunnel, a.api.all, a.again)
	}
	var next, before doer = spreader, mesher
	switch mode {
	case mesh.ModeSpread:
	case mesh.ModeMesh:
		next, before = mesher, spreader
	default:
		return fmt.Errorf("mode %q is none", mode)
	}
	if a.doer != nil {
		before = a.doer
	}
	switch err := before.undo(ctx); {
	case err == nil:
	case a.doer == nil && mode == mesh.ModeMesh: // programs that nobody's traffic meets harm nobody
		a.cfg.Log.Warn("what an earlier agent may have attached stays", "error", err)
	default:
		return fmt.Errorf("ending another mode than %s: %w", mode, err)
	}
	a.doer, a.mode, a.early = next, mode, nil
	return nil
}
