// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/ropewalk/ropewalk/pkg/cluster/announce"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// cluster follows the API's Nodes and RopewalkAnnouncements, and the RopewalkNode of the own node, with informers. all is not safe for concurrent use, the other methods are.
type cluster struct {
	own         string
	ownNode     cache.SharedIndexInformer // watches the own Node alone
	ownAgent    cache.SharedIndexInformer // watches the own RopewalkNode alone
	nodes       cache.SharedIndexInformer // all Nodes, as reader last read them
	reader      *nodeReader
	agents      cache.SharedIndexInformer // all RopewalkAnnouncements
	blocks      *podBlocks                // nil: Nodes have the pod prefixes
	endpoints   *apiEndpoints
	external    *externalPeers
	mesh        cache.SharedIndexInformer // of the RopewalkMesh; nil: the agent's mode has none
	trigger     func()                    // requests a reconcile
	agentStates map[string]agentState     // by node
	planTimer   time.Time                 // when trigger runs for a delayed port plan
	count       atomic.Int64              // of nodes, at the last call of all
}

// agentState is the last known state of a node's agent.
type agentState struct {
	nodeUID, announcementUID types.UID // of the Node and of the RopewalkAnnouncement
	agent                    *mesh.Agent
	plansChangedAt           time.Time // when the last change of its port plans was accepted; zero: never
}

// newCluster returns a cluster that calls changed after each change that may matter to the node of the given name.
func newCluster(c *client, own string, surveyPeriod time.Duration, log *slog.Logger, changed func()) (*cluster, error) {
	self, everything := fields.OneTermEqualSelector("metadata.name", own), fields.Everything()
	reader := newNodeReader(c, own, surveyPeriod, log)
	k := &cluster{
		own: own, reader: reader, agentStates: map[string]agentState{}, trigger: changed,
		ownNode:  cache.NewSharedIndexInformer(cache.NewListWatchFromClient(c.core, "nodes", "", self), &node{}, 0, nil),
		nodes:    cache.NewSharedIndexInformer(reader, &node{}, 0, nil),
		ownAgent: cache.NewSharedIndexInformer(cache.NewListWatchFromClient(c.own, v1alpha1.Resource, "", self), &v1alpha1.RopewalkNode{}, 0, nil),
		agents:   cache.NewSharedIndexInformer(cache.NewListWatchFromClient(c.own, v1alpha1.AnnouncementResource, "", everything), &v1alpha1.RopewalkAnnouncement{}, 0, nil),
	}
	reader.nodes, reader.agents = k.nodes, k.agents
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, DeleteFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			if isRelevantUpdate(before, after, own) {
				changed()
			}
		},
	}
	for i, trim := range map[cache.SharedIndexInformer]cache.TransformFunc{k.ownNode: trimOwnNode, k.ownAgent: trimObject, k.nodes: trimObject, k.agents: trimObject} {
		if err := i.SetTransform(trim); err != nil {
			return nil, fmt.Errorf("setting up the informers of Nodes and announcements: %w", err)
		}
		if _, err := i.AddEventHandler(handler); err != nil {
			return nil, fmt.Errorf("setting up the informers of Nodes and announcements: %w", err)
		}
	}
	request := func(o any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
			reader.request(key)
		}
	}
	_, err := k.agents.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: request, DeleteFunc: request, UpdateFunc: func(_, o any) { request(o) }})
	return k, err
}

// newMeshInformer returns an informer of the RopewalkMesh that calls changed after each change of the spec.
func newMeshInformer(c *client, changed func()) (cache.SharedIndexInformer, error) {
	self := fields.OneTermEqualSelector("metadata.name", v1alpha1.MeshName)
	i := cache.NewSharedIndexInformer(cache.NewListWatchFromClient(c.own, v1alpha1.MeshResource, "", self), &v1alpha1.RopewalkMesh{}, 0, nil)
	if err := errors.Join(i.SetTransform(trimObject), notifyOfDefinitions(i, changed)); err != nil {
		return nil, fmt.Errorf("setting up the informer of the RopewalkMesh: %w", err)
	}
	return i, nil
}

// trimOwnNode is the transform for the own Node. Its labels select RopewalkPeers and a pool.
func trimOwnNode(object any) (any, error) {
	n, ok := object.(*node)
	if !ok {
		return trimObject(object)
	}
	labels := n.Labels
	_, err := trimObject(n)
	n.Labels = labels
	return n, err
}

// isRelevantUpdate reports whether an update may matter. A kubelet's heartbeat does not.
func isRelevantUpdate(before, after any, own string) bool {
	switch a := before.(type) {
	case *node:
		b, same := after.(*node)
		return !same || !sameNodeObject(toMesh(a, nil), toMesh(b, nil)) || a.UID != b.UID || a.Settings != b.Settings || !maps.Equal(restricted(a.Labels), restricted(b.Labels)) ||
			a.Name == own && (!maps.Equal(a.Labels, b.Labels) || a.hasStartupTaint() != b.hasStartupTaint())
	case *v1alpha1.RopewalkAnnouncement:
		b, same := after.(*v1alpha1.RopewalkAnnouncement)
		if !same || a.Name == own || a.UID != b.UID {
			return true
		}
		return !a.DeletionTimestamp.Equal(b.DeletionTimestamp) || !reflect.DeepEqual(a.OwnerReferences, b.OwnerReferences) ||
			!reflect.DeepEqual(announce.Agent(&a.Spec), announce.Agent(&b.Spec))
	}
	return true
}

// start runs the informers until ctx ends.
func (c *cluster) start(ctx context.Context) {
	for _, i := range c.informers() {
		go i.RunWithContext(ctx)
	}
}

// ownInformers returns the informers of the own node's objects with which the agent reports a
// fault to people.
func (c *cluster) ownInformers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{c.ownNode, c.ownAgent}
}

// informers returns the informers that run and must sync.
func (c *cluster) informers() []cache.SharedIndexInformer {
	all := append(c.ownInformers(), c.nodes, c.agents)
	if c.blocks != nil {
		all = append(all, c.blocks)
	}
	if c.mesh != nil {
		all = append(all, c.mesh)
	}
	return all
}

// synced reports whether all informers have their initial lists.
func (c *cluster) synced() bool { return allSynced(c.informers()) }

func allSynced(all []cache.SharedIndexInformer) bool {
	return !slices.ContainsFunc(all, func(i cache.SharedIndexInformer) bool { return !i.HasSynced() })
}

// size returns the number of nodes at the last call of all.
func (c *cluster) size() int64 { return c.count.Load() }

// self returns the own node's objects. Each may be nil.
func (c *cluster) self() (n *node, rn *v1alpha1.RopewalkNode, ra *v1alpha1.RopewalkAnnouncement) {
	return stored[node](c.ownNode, c.own), stored[v1alpha1.RopewalkNode](c.ownAgent, c.own), stored[v1alpha1.RopewalkAnnouncement](c.agents, c.own)
}

// stored returns an informer's object of that name, or nil.
func stored[T any](i cache.SharedIndexInformer, name string) *T {
	o, _, _ := i.GetStore().GetByKey(name)
	t, _ := o.(*T)
	return t
}

// nodeObjects returns the cluster's Nodes, with the own one as its watch has it.
func (c *cluster) nodeObjects() (all []*node) {
	if own, rn, _ := c.self(); own != nil {
		all = append(all, withSettings(own, rn))
	}
	for _, o := range c.nodes.GetStore().List() {
		if n, ok := o.(*node); ok && n.Name != c.own {
			all = append(all, n)
		}
	}
	return all
}

// all returns the cluster's nodes, with OptOut for excluded nodes. It leaves out an announcement
// without a Node, which is about to be garbage-collected. It must not be called concurrently.
func (c *cluster) all(excluded func(*node) bool) []mesh.Node {
	var blocks map[string][]netip.Prefix
	if c.blocks != nil {
		blocks = c.blocks.byNode()
	}
	objects := c.nodeObjects()
	nodes := make([]mesh.Node, 0, len(objects))
	states := make(map[string]agentState, len(c.agentStates))
	var wait time.Duration
	for _, n := range objects {
		m, w := c.agentStates[n.Name].update(n, stored[v1alpha1.RopewalkAnnouncement](c.agents, n.Name))
		m.OptOut = m.OptOut || excluded(n)
		wait = max(wait, w.limitPlanChanges(c.agentStates[n.Name], &m))
		if w != (agentState{}) {
			states[n.Name] = w
		}
		if c.blocks != nil {
			m.PodCIDRs = blocks[n.Name]
		}
		nodes = append(nodes, m)
	}
	c.agentStates = states
	c.triggerAfter(wait)
	c.count.Store(int64(len(nodes)))
	return nodes
}

// triggerAfter requests a reconcile for when a delayed port plan may be accepted. 0: there is none.
func (c *cluster) triggerAfter(wait time.Duration) {
	if wait > 0 && !time.Now().Before(c.planTimer) {
		c.planTimer = time.Now().Add(wait)
		time.AfterFunc(wait, c.trigger)
	}
}

// minPlanAge is the minimum time between two changes of a node's port plans. After each, all other nodes read them and write
// their BPF maps.
const minPlanAge = time.Minute

// limitPlanChanges keeps a node's previous port plans while they are younger than minPlanAge, and returns the remaining time.
// It accepts the first change at once.
func (w *agentState) limitPlanChanges(before agentState, m *mesh.Node) (wait time.Duration) {
	if w.nodeUID != before.nodeUID || w.agent == nil || before.agent == nil || samePlans(&w.agent.Plans, &before.agent.Plans) {
		return 0
	}
	if wait = minPlanAge - time.Since(before.plansChangedAt); wait <= 0 {
		w.plansChangedAt = time.Now()
		return 0
	}
	agent := *w.agent
	agent.Plans = before.agent.Plans
	w.agent, m.Agent = &agent, &agent
	return wait
}

func samePlans(a, b *mesh.Plans) bool { return slices.Equal(a.V4, b.V4) && slices.Equal(a.V6, b.V6) }

// update returns the node, and its state for the next call. It fills in the last known announcement where there is none, or where it was created
// again and is still empty. An emptied one, in contrast, means that the node has no agent any more.
func (w agentState) update(n *node, ra *v1alpha1.RopewalkAnnouncement) (mesh.Node, agentState) {
	m, gone := toMesh(n, ra), !announces(ra, n)
	if w.nodeUID != n.UID {
		if gone {
			return m, agentState{}
		}
		return m, agentState{n.UID, ra.UID, m.Agent, time.Time{}}
	}
	from := w.announcementUID
	switch {
	case gone || ra.UID != from && m.Agent == nil:
		m.Agent = w.agent
	default:
		from = ra.UID
	}
	return m, agentState{n.UID, from, m.Agent, w.plansChangedAt}
}
