// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/cluster/host"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh/view"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// Errors of Snapshot that the user can act on.
var (
	ErrNoDefinition = errors.New("the cluster does not have the CRDs of this version (kubectl apply --server-side -k deploy/crd)")
	ErrForbidden    = errors.New("forbidden: needs the right to list nodes, ropewalknodes.ropewalk.io and ropewalkannouncements.ropewalk.io (kubectl auth can-i list nodes)")
	ErrUnauthorized = errors.New("the API server rejects these credentials")
)

// Snapshot lists the cluster's objects once. Errors are those above, or of reaching the API server.
func Snapshot(ctx context.Context, cfg *rest.Config) (view.Cluster, error) {
	c, err := newClient(cfg)
	if err != nil {
		return view.Cluster{}, err
	}
	agents := map[string]*agentObjects{}
	of := func(name string) *agentObjects {
		if agents[name] == nil {
			agents[name] = &agentObjects{}
		}
		return agents[name]
	}
	err = list(ctx, c.own, v1alpha1.Resource, func(item []byte) error {
		rn := &v1alpha1.RopewalkNode{}
		err := json.Unmarshal(item, rn)
		of(rn.Name).node = rn
		return err
	})
	if err == nil {
		err = list(ctx, c.own, v1alpha1.AnnouncementResource, func(item []byte) error {
			ra := &v1alpha1.RopewalkAnnouncement{}
			err := json.Unmarshal(item, ra)
			of(ra.Name).announcement = ra
			return err
		})
	}
	if err != nil {
		return view.Cluster{}, err
	}
	cluster := view.Cluster{Time: time.Now()}
	if cluster.Peers, err = c.viewPeers(ctx); err != nil {
		return view.Cluster{}, err
	}
	var wanted *intent
	if cluster.Mesh, wanted, err = c.viewMesh(ctx); err != nil {
		return view.Cluster{}, err
	}
	err = list(ctx, c.core, "nodes", func(item []byte) error {
		n := &fullNode{}
		err := json.Unmarshal(item, n)
		if err == nil {
			err = json.Unmarshal(item, &n.node)
		}
		v := n.view(of(n.node.Name))
		v.OptOut = v.OptOut || wanted.excludes(&n.node)
		cluster.Nodes = append(cluster.Nodes, v)
		delete(agents, n.node.Name)
		return err
	})
	for name, o := range agents {
		n := mesh.Node{Name: name}
		if o.node != nil {
			n.Created = o.node.CreationTimestamp.Time
		}
		cluster.Nodes = append(cluster.Nodes, view.Node{Node: n, Origin: view.NoNode, Kubelet: view.Unknown, Reported: o.reported()})
	}
	return cluster, err
}

// viewPeers returns the RopewalkPeers: none if the cluster has no such resource, and nil without the right to list them.
func (c *client) viewPeers(ctx context.Context) (all []view.Peer, err error) {
	all = []view.Peer{}
	err = list(ctx, c.own, v1alpha1.PeerResource, func(item []byte) error {
		rp := &v1alpha1.RopewalkPeer{}
		err := json.Unmarshal(item, rp)
		all = append(all, viewPeer(rp))
		return err
	})
	switch {
	case errors.Is(err, ErrForbidden):
		return nil, nil
	case apierrors.IsNotFound(err):
		return all, nil
	}
	return all, err
}

// viewMesh returns the RopewalkMesh; nil: the cluster has none, or there is no right to list it.
func (c *client) viewMesh(ctx context.Context) (m *view.MeshObject, wanted *intent, err error) {
	err = list(ctx, c.own, v1alpha1.MeshResource, func(item []byte) error {
		rm := &v1alpha1.RopewalkMesh{}
		if err := json.Unmarshal(item, rm); err != nil {
			return err
		}
		m = &view.MeshObject{UID: string(rm.UID), Generation: rm.Generation, Cleartext: string(rm.Spec.Cleartext)}
		wanted, _ = parseIntent(&rm.Spec) // of another version: the agents report it
		return nil
	})
	if errors.Is(err, ErrForbidden) || apierrors.IsNotFound(err) {
		err = nil
	}
	return m, wanted, err
}

func viewPeer(rp *v1alpha1.RopewalkPeer) view.Peer {
	p := view.Peer{
		Name: rp.Name, Key: string(rp.Spec.PublicKey), AllowedIPs: []string{}, Endpoint: string(rp.Spec.Endpoint), Nodes: selectorText(&rp.Spec.NodeSelector),
		Accepted: conditionOf(rp.Status.Conditions, v1alpha1.ConditionAccepted),
	}
	for _, a := range rp.Spec.AllowedIPs {
		p.AllowedIPs = append(p.AllowedIPs, string(a))
	}
	if c := meta.FindStatusCondition(rp.Status.Conditions, v1alpha1.ConditionAccepted); c != nil {
		p.Message = c.Message
	}
	return p
}

// NodesWithAgent returns the names of the nodes whose agent has published a mode, in the API
// server's order. Nodes that are not Ready, or that the cluster no longer has, are in away: no
// cleanup can run there. In a cluster without announcements it asks the RopewalkNodes. Errors are
// as in Snapshot.
func NodesWithAgent(ctx context.Context, cfg *rest.Config) (names, away []string, err error) {
	c, err := newClient(cfg)
	if err != nil {
		return nil, nil, err
	}
	ready := map[string]bool{}
	err = list(ctx, c.core, "nodes", func(item []byte) error {
		n := &fullNode{}
		err := errors.Join(json.Unmarshal(item, &n.node), json.Unmarshal(item, n))
		ready[n.node.Name] = conditionOf(n.Status.Conditions, "Ready") == view.Yes
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	add := func(name string) {
		if ready[name] {
			names = append(names, name)
		} else {
			away = append(away, name)
		}
	}
	err = list(ctx, c.own, v1alpha1.AnnouncementResource, func(item []byte) error {
		ra := &v1alpha1.RopewalkAnnouncement{}
		err := json.Unmarshal(item, ra)
		if ra.Spec.Mode != "" {
			add(ra.Name)
		}
		return err
	})
	if errors.Is(err, ErrNoDefinition) {
		err = list(ctx, c.own, v1alpha1.Resource, func(item []byte) error {
			rn := &v1alpha1.RopewalkNode{}
			err := json.Unmarshal(item, rn)
			if rn.Status.AgentVersion != "" && !isCleanedUp(&rn.Status) {
				add(rn.Name)
			}
			return err
		})
	}
	return names, away, err
}

// isCleanedUp reports whether a cleanup wrote a status.
func isCleanedUp(st *v1alpha1.NodeStatus) bool {
	c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady)
	return c != nil && c.Reason == reasonCleanedUp
}

// fullNode is a Node with the conditions, which agents do not read.
type fullNode struct {
	node   node
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// agentObjects are the objects that an agent writes of its node. Either may be nil.
type agentObjects struct {
	node         *v1alpha1.RopewalkNode
	announcement *v1alpha1.RopewalkAnnouncement
}

func (n *fullNode) view(o *agentObjects) view.Node {
	known := withSettings(&n.node, o.node)
	v := view.Node{Node: toMesh(known, o.announcement), Origin: view.Whole, Kubelet: conditionOf(n.Status.Conditions, "Ready"), Reported: o.reported()}
	switch ra := o.announcement; {
	case ra != nil && !ownedBy(ra, known), o.node != nil && hasNodeAsOwner(o.node) && !ownedBy(o.node, known):
		v.Origin = view.OtherOwner
	case o.node == nil && ra == nil, ra == nil && !hasNodeAsOwner(o.node):
		v.Origin = view.NoAgent
	case ra != nil && ra.Spec.PodCIDRSource != "":
		v.PodCIDRs = nil
		for _, text := range ra.Spec.PodCIDRs {
			if p, err := netip.ParsePrefix(string(text)); err == nil {
				v.PodCIDRs = append(v.PodCIDRs, p.Masked())
			}
		}
	}
	return v
}

// reported converts what a node's agent has published, for display.
func (o *agentObjects) reported() view.Reported {
	rn, ra := o.node, o.announcement
	if rn == nil {
		rn = &v1alpha1.RopewalkNode{}
	}
	if ra == nil {
		ra = &v1alpha1.RopewalkAnnouncement{}
	}
	st := &rn.Status
	t := view.Reported{
		Mode: mesh.Mode(ra.Spec.Mode), MTU: int(ra.Spec.MTU), Peers: int(st.Peers), SpreadsTo: int(st.SpreadsTo),
		Ready: conditionOf(st.Conditions, v1alpha1.ConditionReady), Generation: rn.Generation, ObservedGeneration: st.ObservedGeneration,
		KeyGeneration: st.KeyGeneration, KeyRequested: rn.Spec.KeyGeneration, AgentVersion: st.AgentVersion, KernelVersion: st.KernelVersion,
		OldKernel: host.OldKernel(st.KernelVersion) != "", MeshUID: st.MeshUID, MeshGeneration: st.MeshGeneration,
	}
	for _, c := range st.Conditions {
		if c.Type != v1alpha1.ConditionReady {
			t.Observed = append(t.Observed, view.Observation{Type: c.Type, Status: conditionOf(st.Conditions, c.Type), Reason: c.Reason, Message: c.Message})
		}
	}
	for _, e := range ra.Spec.Endpoints {
		t.Endpoints = append(t.Endpoints, string(e))
	}
	for _, p := range ra.Spec.PodCIDRs {
		t.PodCIDRs = append(t.PodCIDRs, string(p))
	}
	if s := st.StalePeers; s != nil {
		t.Unresponsive = view.UnresponsivePeers{Count: int(s.Count), Nodes: s.Nodes}
	}
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady); c != nil {
		t.Message = c.Message
	}
	return t
}

// conditionOf returns the status of a condition.
func conditionOf(conditions []metav1.Condition, kind string) view.Tristate {
	switch {
	case meta.IsStatusConditionTrue(conditions, kind):
		return view.Yes
	case meta.IsStatusConditionFalse(conditions, kind):
		return view.No
	}
	return view.Unknown
}
