// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/ropewalk/ropewalk/pkg/cluster/announce"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// nodeReader supplies an informer with the other nodes' Nodes, without a watch of them. Each
// kubelet writes ten kilobytes every five minutes, and at 5,000 nodes a watch by every agent is
// 0.8 GB/s. Instead it lists them once and then reads single Nodes:
//   - when a node's RopewalkAnnouncement claims something else than the known Node has. The claim only causes the read: the agent believes the
//     Node. If it does not agree either, administrators may have set another endpoint, so that
//     the agent also reads the RopewalkNode. It also does
//     when the ports of such an endpoint change.
//   - when a survey, a list of names alone, shows that a Node came or went that has no agent
//   - in turn, a few per survey
//
// It implements cache.ListerWatcherWithContext.
type nodeReader struct {
	client        *client
	own           string        // has a watch of its own
	minPeriod     time.Duration // of surveys
	minInterval   time.Duration // minReadInterval
	log           *slog.Logger
	nodes, agents cache.SharedIndexInformer

	mu        sync.Mutex
	requested map[string]bool // names of nodes whose announcements changed
	wake      chan struct{}   // has an element while requested names are to be handled

	lastReads  map[string]nodeRead       // used by List and by the watch after it
	failing    bool                      // the last read failed
	surveyedAt atomic.Pointer[time.Time] // when the last survey began that found nothing new, by the monotonic clock; nil: never
}

// nodeRead is the last read of a Node.
type nodeRead struct {
	at    time.Time
	claim claim // of its announcement at that time
}

const (
	// minReadInterval is the time between two reads of a Node: a node that writes all the time must not make all others read.
	minReadInterval = 5 * time.Second
	// readJitterPerNode, times the number of nodes, is the longest delay of a read. All agents read a new Node: at 5,000, within two seconds.
	readJitterPerNode = 400 * time.Microsecond
	// surveyPeriodPerNode, times the number of nodes, is the period of surveys: all agents together make 17 per second.
	surveyPeriodPerNode = 60 * time.Millisecond
	// minRelist is the number of Nodes that are read one by one, even in small clusters. With more, and more than a fifth of all Nodes,
	// a new list is cheaper.
	minRelist = 20
	// suspectsPerSurvey and readsPerSurvey bound the reads in turn: of Nodes that do not agree with an announcement, and of any.
	suspectsPerSurvey, readsPerSurvey = 2, 1
)

func newNodeReader(c *client, own string, minPeriod time.Duration, log *slog.Logger) *nodeReader {
	return &nodeReader{
		client: c, own: own, minPeriod: minPeriod, minInterval: minReadInterval, log: log, requested: map[string]bool{}, wake: make(chan struct{}, 1),
	}
}

// IsWatchListSemanticsUnSupported tells the informer to call List first.
func (r *nodeReader) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.ListerWatcher.
func (r *nodeReader) List(o metav1.ListOptions) (runtime.Object, error) {
	return r.ListWithContext(context.Background(), o)
}

// ListWithContext returns all Nodes. It reads them in pages, and keeps of each only what the agent needs. The first list waits for the
// announcements, which say whose settings to read.
func (r *nodeReader) ListWithContext(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	select {
	case <-r.agents.HasSyncedChecker().Done():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	began := time.Now()
	all, err := r.client.nodes(ctx)
	if err == nil {
		err = r.readSettings(ctx, pointersTo(all.Items))
	}
	if err != nil {
		return nil, err
	}
	r.lastReads = make(map[string]nodeRead, len(all.Items))
	r.recordList(all, began)
	return all, nil
}

// readSettings fills in the settings of Nodes. It reads the RopewalkNodes of nodes that do not
// agree with their announcement otherwise, or that had settings before. There administrators have
// set, changed or removed an endpoint or its port.
func (r *nodeReader) readSettings(ctx context.Context, nodes []*node) error {
	var differ []*node
	for _, n := range nodes {
		before, ra := r.known(n.Name)
		if before != nil && before.UID == n.UID {
			n.Settings = before.Settings
		}
		if ra != nil && n.Name != r.own && (n.Settings != nodeSettings{} || !agrees(n, ra)) {
			differ = append(differ, n)
		}
	}
	if len(differ) > max(minRelist, len(nodes)/5) {
		return r.listSettings(ctx, differ)
	}
	for _, n := range differ {
		rn, err := r.client.ropewalkNode(ctx, n.Name)
		if err != nil {
			return err
		}
		n.Settings = settingsFor(n, rn)
	}
	return nil
}

// listSettings fills in the settings of Nodes from the list of all RopewalkNodes.
func (r *nodeReader) listSettings(ctx context.Context, nodes []*node) error {
	byName := make(map[string]*node, len(nodes))
	for _, n := range nodes {
		n.Settings, byName[n.Name] = nodeSettings{}, n
	}
	return list(ctx, r.client.own, v1alpha1.Resource, func(item []byte) error {
		rn := &v1alpha1.RopewalkNode{}
		err := json.Unmarshal(item, rn)
		if n := byName[rn.Name]; n != nil {
			n.Settings = settingsFor(n, rn)
		}
		return err
	})
}

func pointersTo[T any](items []T) []*T {
	all := make([]*T, len(items))
	for i := range items {
		all[i] = &items[i]
	}
	return all
}

// recordList records a read of all Nodes.
func (r *nodeReader) recordList(all *nodeList, began time.Time) {
	for i := range all.Items {
		_, ra := r.known(all.Items[i].Name)
		r.lastReads[all.Items[i].Name] = nodeRead{began, claimOf(ra)}
	}
	r.surveyedAt.Store(&began)
}

// Watch implements cache.ListerWatcher.
func (r *nodeReader) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return r.WatchWithContext(context.Background(), o)
}

// WatchWithContext returns a watch that has an event for each Node that was read. It never ends by itself.
func (r *nodeReader) WatchWithContext(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &nodeWatch{nodeReader: r, events: make(chan watch.Event), done: make(chan struct{}), cancel: cancel}
	go w.run(ctx)
	return w, nil
}

// request requests a check of the Node of that name, because its announcement changed.
func (r *nodeReader) request(name string) {
	if name == r.own {
		return
	}
	r.mu.Lock()
	r.requested[name] = true
	r.mu.Unlock()
	r.wakeUp()
}

// requestAfter requests the check after minInterval.
func (r *nodeReader) requestAfter(name string) {
	time.AfterFunc(r.minInterval, func() { r.request(name) })
}

func (r *nodeReader) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *nodeReader) take() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.requested
	r.requested = map[string]bool{}
	return all
}

// asOf returns the time at which the known Nodes were all of the cluster's, or zero: no list was made yet.
func (r *nodeReader) asOf() time.Time {
	if at := r.surveyedAt.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// known returns the objects of that name that the informers have. Either may be nil.
func (r *nodeReader) known(name string) (*node, *v1alpha1.RopewalkAnnouncement) {
	return stored[node](r.nodes, name), stored[v1alpha1.RopewalkAnnouncement](r.agents, name)
}

// count returns the number of known Nodes.
func (r *nodeReader) count() int { return len(r.nodes.GetStore().ListKeys()) }

// nodeWatch is a watch.Interface of a nodeReader.
type nodeWatch struct {
	*nodeReader
	events chan watch.Event
	done   chan struct{}
	cancel context.CancelFunc
}

// ResultChan implements watch.Interface.
func (w *nodeWatch) ResultChan() <-chan watch.Event { return w.events }

// Stop implements watch.Interface. It returns when nothing is read any more.
func (w *nodeWatch) Stop() {
	w.cancel()
	<-w.done
}

func (w *nodeWatch) run(ctx context.Context) {
	defer close(w.done)
	for _, i := range []cache.SharedIndexInformer{w.nodes, w.agents} {
		select {
		case <-i.HasSyncedChecker().Done():
		case <-ctx.Done():
			return
		}
	}
	survey := time.NewTimer(w.period())
	defer survey.Stop()
	var requested <-chan time.Time
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-survey.C:
			w.survey(ctx)
			survey.Reset(w.period())
		case <-w.wake:
			requested = time.After(rand.N(1 + time.Duration(w.count())*readJitterPerNode))
		case <-requested:
			w.readRequested(ctx)
		}
	}
}

func (w *nodeWatch) period() time.Duration {
	return wait.Jitter(max(w.minPeriod, time.Duration(1+w.count())*surveyPeriodPerNode), 0.2)
}

// readRequested reads the requested Nodes that do not agree with their announcements, once for each claim.
func (w *nodeWatch) readRequested(ctx context.Context) {
	var due []string
	for name := range w.take() {
		n, ra := w.known(name)
		last, wasRead := w.lastReads[name]
		switch now := claimOf(ra); {
		case agrees(n, ra) && (n == nil || n.Settings == nodeSettings{} || wasRead && last.claim == now):
			w.lastReads[name] = nodeRead{last.at, now}
		case wasRead && last.claim == now:
		case time.Since(last.at) < w.minInterval:
			w.requestAfter(name)
		default:
			due = append(due, name)
		}
	}
	w.read(ctx, due)
}

// survey lists the names of all Nodes. It reads the Nodes that came or went, and a few others.
func (w *nodeWatch) survey(ctx context.Context) {
	began := time.Now()
	names, err := w.client.nodeNames(ctx)
	if err != nil {
		w.report(ctx, err)
		return
	}
	w.failing = false
	var due []string
	exists := make(map[string]bool, len(names))
	for _, name := range names {
		exists[name] = true
		if n, _ := w.known(name); n == nil && name != w.own {
			due = append(due, name)
		}
	}
	for _, name := range w.nodes.GetStore().ListKeys() {
		if !exists[name] && name != w.own {
			due = append(due, name)
		}
	}
	if len(due) == 0 {
		w.surveyedAt.Store(&began)
	}
	w.forget(exists)
	w.read(ctx, append(due, w.inTurn()...))
}

// forget drops what is known about reads of names that no object has.
func (w *nodeWatch) forget(exists map[string]bool) {
	for name := range w.lastReads {
		if n, ra := w.known(name); n == nil && ra == nil && !exists[name] {
			delete(w.lastReads, name)
		}
	}
}

// inTurn returns the names of the Nodes whose last reads are the oldest.
func (w *nodeWatch) inTurn() (names []string) {
	all := w.nodes.GetStore().ListKeys()
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(w.lastReads[a].at.Compare(w.lastReads[b].at), cmp.Compare(a, b)) })
	suspects, others := suspectsPerSurvey, readsPerSurvey
	for _, name := range all {
		n, ra := w.known(name)
		switch suspect := !agrees(n, ra); {
		case n == nil || name == w.own:
		case suspect && suspects > 0:
			suspects--
			names = append(names, name)
		case others > 0:
			others--
			names = append(names, name)
		}
	}
	return names
}

// read reads Nodes and delivers them to the informer.
func (w *nodeWatch) read(ctx context.Context, names []string) {
	if len(names) > max(minRelist, w.count()/5) {
		w.relist(ctx, names)
		return
	}
	for _, name := range names {
		_, ra := w.known(name)
		w.lastReads[name] = nodeRead{time.Now(), claimOf(ra)}
		n, err := w.client.node(ctx, name)
		if err == nil {
			err = w.readSettings(ctx, []*node{n})
		}
		switch {
		case apierrors.IsNotFound(err):
			w.deleted(ctx, name)
		case err != nil:
			w.lastReads[name] = nodeRead{at: time.Now(), claim: unread}
			w.requestAfter(name)
			w.report(ctx, err, "node", name)
		default:
			w.failing = false
			w.found(ctx, n)
		}
	}
}

// claim is a hash of an announcement's claims about its Node: the text would take as much memory
// as the Node.
type claim uint64

const (
	noClaim claim = iota // there is no announcement
	unread               // no announcement has it, so that the Node is read again
)

// claimSeed keeps nodes from making claims of the same hash.
var claimSeed = maphash.MakeSeed()

// relist reads all Nodes.
func (w *nodeWatch) relist(ctx context.Context, names []string) {
	began := time.Now()
	all, err := w.client.nodes(ctx)
	if err == nil {
		err = w.readSettings(ctx, pointersTo(all.Items))
	}
	if err != nil {
		w.report(ctx, err)
		for _, name := range names {
			w.requestAfter(name)
		}
		return
	}
	w.failing = false
	listed := make(map[string]bool, len(all.Items))
	for i := range all.Items {
		n := all.Items[i]
		listed[n.Name] = true
		w.found(ctx, &n)
	}
	for _, name := range append(w.nodes.GetStore().ListKeys(), names...) {
		if !listed[name] {
			_, ra := w.known(name)
			w.lastReads[name] = nodeRead{began, claimOf(ra)}
			w.deleted(ctx, name)
		}
	}
	w.recordList(all, began)
}

// found delivers a Node.
func (w *nodeWatch) found(ctx context.Context, n *node) {
	before, _ := w.known(n.Name)
	switch {
	case before == nil:
		w.send(ctx, watch.Event{Type: watch.Added, Object: n})
	case before.ResourceVersion != n.ResourceVersion || before.Settings != n.Settings:
		w.send(ctx, watch.Event{Type: watch.Modified, Object: n})
	}
}

// deleted reports that a Node does not exist.
func (w *nodeWatch) deleted(ctx context.Context, name string) {
	w.failing = false
	if before, _ := w.known(name); before != nil {
		w.send(ctx, watch.Event{Type: watch.Deleted, Object: before.DeepCopyObject()}) // the informer trims it while others read
	}
}

func (w *nodeWatch) send(ctx context.Context, e watch.Event) {
	select {
	case w.events <- e:
	case <-ctx.Done():
	}
}

// report logs the first of several failures. object has the key and the name of a single Node.
func (w *nodeWatch) report(ctx context.Context, err error, object ...any) {
	if ctx.Err() == nil && !w.failing {
		w.log.With(object...).Warn("reading Nodes failed, keeping their last known state and retrying", "error", err)
		w.failing = true
	}
}

// agrees reports whether an announcement claims what the Node has. Otherwise the known Node may be outdated.
func agrees(n *node, ra *v1alpha1.RopewalkAnnouncement) bool {
	if n == nil || ra == nil {
		return n == nil && ra == nil
	}
	if hasNodeAsOwner(ra) && !ownedBy(ra, n) {
		return false
	}
	if ra.Spec.Mode == "" {
		return true
	}
	m := toMesh(n, nil)
	if m.Endpoint.IsValid() {
		m.Addrs = []netip.Addr{m.Endpoint}
	}
	return slices.Equal(announce.SortedAddrs(mesh.UsableAddrs(m.Addrs)), announce.Addrs(&ra.Spec)) &&
		(ra.Spec.PodCIDRSource != "" || slices.Equal(slices.Sorted(slices.Values(announce.CIDRsOf(m))), slices.Sorted(slices.Values(ra.Spec.PodCIDRs))))
}

// claimOf returns what an announcement claims about its Node, and the ports of its endpoints, which administrators may set. Nil claims nothing.
func claimOf(ra *v1alpha1.RopewalkAnnouncement) claim {
	if ra == nil {
		return noClaim
	}
	var b maphash.Hash
	b.SetSeed(claimSeed)
	for _, o := range ra.OwnerReferences {
		_, _ = b.WriteString(string(o.UID) + " ")
	}
	fmt.Fprint(&b, slices.Sorted(slices.Values(ra.Spec.Endpoints)), ra.Spec.PodCIDRs)
	return claim(b.Sum64() | 1<<63)
}
