// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/ropewalk/ropewalk/pkg/kube/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/mesh"
)

// cluster is a picture of the cluster that follows it.
type cluster struct {
	nodes       cache.SharedIndexInformer
	agents      cache.SharedIndexInformer
	trigger     func()                // has all looked at
	agentStates map[string]agentState // by node; only all uses it
	planTimer   time.Time             // when changed is called for a plan that is not taken yet; likewise
	count       atomic.Int64          // nodes, at the last look
}

// agentState is the last one of a node's agent, and of its administrators.
type agentState struct {
	nodeUID, ropewalkNodeUID types.UID // of the Node and of the RopewalkNode
	agent                    *mesh.Agent
	optOut                   bool
	endpoint                 netip.Addr
	plansChangedAt           time.Time // when other plans than before were taken last; zero: never
}

// newCluster calls changed after each change that may matter to the node of that name.
func newCluster(c *client, own string, changed func()) (*cluster, error) {
	everything := fields.Everything()
	k := &cluster{
		nodes:       cache.NewSharedIndexInformer(cache.NewListWatchFromClient(c.core, "nodes", "", everything), &node{}, 0, nil),
		agents:      cache.NewSharedIndexInformer(cache.NewListWatchFromClient(c.own, v1alpha1.Resource, "", everything), &v1alpha1.RopewalkNode{}, 0, nil),
		agentStates: map[string]agentState{}, trigger: changed,
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, DeleteFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			if isRelevantUpdate(before, after, own) {
				changed()
			}
		},
	}
	for _, i := range []cache.SharedIndexInformer{k.nodes, k.agents} {
		if err := i.SetTransform(trimObject); err != nil {
			return nil, fmt.Errorf("preparing to watch: %w", err)
		}
		if _, err := i.AddEventHandler(handler); err != nil {
			return nil, fmt.Errorf("preparing to watch: %w", err)
		}
	}
	return k, nil
}

// trimObject drops what nobody here reads, and is much of an object.
func trimObject(object any) (any, error) {
	if m, ok := object.(metav1.Object); ok {
		m.SetManagedFields(nil)
		m.SetAnnotations(nil)
		m.SetLabels(nil)
	}
	return object, nil
}

// isRelevantUpdate tells whether an update may matter: a kubelet's heartbeat does not, nor how many peers another node counts.
func isRelevantUpdate(before, after any, own string) bool {
	switch a := before.(type) {
	case *node:
		b, same := after.(*node)
		return !same || !sameNodeObject(toMesh(a, nil), toMesh(b, nil)) || a.UID != b.UID
	case *v1alpha1.RopewalkNode:
		b, same := after.(*v1alpha1.RopewalkNode)
		if !same || a.Name == own || a.UID != b.UID {
			return true
		}
		return a.Spec != b.Spec || a.Status.Mode != b.Status.Mode || !a.DeletionTimestamp.Equal(b.DeletionTimestamp) ||
			!reflect.DeepEqual(a.OwnerReferences, b.OwnerReferences) || !reflect.DeepEqual(toAgent(&a.Status), toAgent(&b.Status))
	}
	return true
}

// start follows the cluster until ctx ends.
func (k *cluster) start(ctx context.Context) {
	go k.nodes.RunWithContext(ctx)
	go k.agents.RunWithContext(ctx)
}

// synced tells that the picture is whole: it has all that there was when it was begun.
func (k *cluster) synced() bool { return k.nodes.HasSynced() && k.agents.HasSynced() }

// size is the number of nodes, at the last look.
func (k *cluster) size() int64 { return k.count.Load() }

// nodeUID returns what there is by that name; either may be nil.
func (k *cluster) node(name string) (*node, *v1alpha1.RopewalkNode) {
	var n *node
	var rn *v1alpha1.RopewalkNode
	if o, ok, _ := k.nodes.GetStore().GetByKey(name); ok {
		n, _ = o.(*node)
	}
	if o, ok, _ := k.agents.GetStore().GetByKey(name); ok {
		rn, _ = o.(*v1alpha1.RopewalkNode)
	}
	return n, rn
}

// all returns the cluster's nodes. A RopewalkNode without a node, which the garbage collector has yet to see, is none. It is
// not to be called concurrently.
func (k *cluster) all() []mesh.Node {
	agents := map[string]*v1alpha1.RopewalkNode{}
	for _, o := range k.agents.GetStore().List() {
		if rn, ok := o.(*v1alpha1.RopewalkNode); ok {
			agents[rn.Name] = rn
		}
	}
	var nodes []mesh.Node
	words := make(map[string]agentState, len(k.agentStates))
	var wait time.Duration
	for _, o := range k.nodes.GetStore().List() {
		n, ok := o.(*node)
		if !ok {
			continue
		}
		m, w := k.agentStates[n.Name].update(n, agents[n.Name])
		wait = max(wait, w.limitPlanChanges(k.agentStates[n.Name], &m))
		if w != (agentState{}) {
			words[n.Name] = w
		}
		nodes = append(nodes, m)
	}
	k.agentStates = words
	k.triggerAfter(wait)
	k.count.Store(int64(len(nodes)))
	return nodes
}

// triggerAfter has all looked at when a plan may be taken; 0: there is none to wait for.
func (k *cluster) triggerAfter(wait time.Duration) {
	if wait > 0 && !time.Now().Before(k.planTimer) {
		k.planTimer = time.Now().Add(wait)
		time.AfterFunc(wait, k.trigger)
	}
}

// minPlanAge is how long a node's plans stand at least. With each change of them, all other nodes read and write their maps.
const minPlanAge = time.Minute

// limitPlanChanges leaves a node's plans as they were before while those are new, and returns how long. The first others are taken at once.
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

// update reads a node, with its agent's last word where that is only missing: a RopewalkNode that is gone, or was made anew
// and is still empty, says nothing. One that was emptied says that there is no agent any more.
func (w agentState) update(n *node, rn *v1alpha1.RopewalkNode) (mesh.Node, agentState) {
	m := toMesh(n, rn)
	gone := rn == nil || !ownedBy(rn, n) || !rn.DeletionTimestamp.IsZero()
	if w.nodeUID != n.UID {
		if gone {
			return m, agentState{}
		}
		return m, agentState{n.UID, rn.UID, m.Agent, m.OptOut, m.Endpoint, time.Time{}}
	}
	if gone || hasUntouchedSpec(rn) {
		m.OptOut, m.Endpoint = w.optOut, w.endpoint
	}
	from := w.ropewalkNodeUID
	switch {
	case gone || rn.UID != from && rn.Status.Mode == "":
		m.Agent = w.agent
	default:
		from = rn.UID
	}
	return m, agentState{n.UID, from, m.Agent, m.OptOut, m.Endpoint, w.plansChangedAt}
}

// hasUntouchedSpec tells that nobody has asked for anything since the agent made it.
func hasUntouchedSpec(rn *v1alpha1.RopewalkNode) bool {
	return rn.Generation <= 1 && rn.Spec == (v1alpha1.NodeSpec{})
}
