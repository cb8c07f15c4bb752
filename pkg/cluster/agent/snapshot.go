// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh/view"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// Errors of Snapshot that the user can act on.
var (
	ErrNoDefinition = errors.New("the cluster does not have the RopewalkNode CRD (kubectl apply -f deploy/crd)")
	ErrForbidden    = errors.New("forbidden: needs the right to list nodes and ropewalknodes.ropewalk.io (kubectl auth can-i list nodes)")
	ErrUnauthorized = errors.New("the API server rejects these credentials")
)

// Snapshot lists the cluster's objects once. Errors are those above, or of reaching the API server.
func Snapshot(ctx context.Context, cfg *rest.Config) (view.Cluster, error) {
	c, err := newClient(cfg)
	if err != nil {
		return view.Cluster{}, err
	}
	agents := map[string]*v1alpha1.RopewalkNode{}
	err = list(ctx, c.own, v1alpha1.Resource, func(item []byte) error {
		rn := &v1alpha1.RopewalkNode{}
		err := json.Unmarshal(item, rn)
		agents[rn.Name] = rn
		return err
	})
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
		v := n.view(agents[n.node.Name])
		v.OptOut = v.OptOut || wanted.excludes(&n.node)
		cluster.Nodes = append(cluster.Nodes, v)
		delete(agents, n.node.Name)
		return err
	})
	for _, rn := range agents {
		cluster.Nodes = append(cluster.Nodes, view.Node{
			Node: mesh.Node{Name: rn.Name, Created: rn.CreationTimestamp.Time}, Origin: view.NoNode, Kubelet: view.Unknown, Reported: reported(rn),
		})
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

// NodesWithAgent returns the names of the nodes whose agent has published a mode, in the API server's order. Those that are not Ready, or that the
// cluster no longer has, are in away: no cleanup can run there. Errors are those of Snapshot.
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
	err = list(ctx, c.own, v1alpha1.Resource, func(item []byte) error {
		rn := &v1alpha1.RopewalkNode{}
		err := json.Unmarshal(item, rn)
		switch {
		case rn.Status.Mode == "":
		case ready[rn.Name]:
			names = append(names, rn.Name)
		default:
			away = append(away, rn.Name)
		}
		return err
	})
	return names, away, err
}

// list calls a function with each object of a resource, page by page.
func list(ctx context.Context, c rest.Interface, resource string, with func(item []byte) error) error {
	next := ""
	for {
		body, err := c.Get().Resource(resource).Param("limit", strconv.Itoa(pageSize)).Param("continue", next).
			SetHeader("Accept", "application/json").Do(ctx).Raw()
		if err != nil {
			return explainListError(resource, err)
		}
		var page struct {
			Metadata metav1.ListMeta   `json:"metadata"`
			Items    []json.RawMessage `json:"items"`
		}
		if err = json.Unmarshal(body, &page); err != nil {
			return fmt.Errorf("reading the list of %s: %w", resource, err)
		}
		for _, item := range page.Items {
			if err := with(item); err != nil {
				return fmt.Errorf("reading the list of %s: %w", resource, err)
			}
		}
		if next = page.Metadata.Continue; next == "" {
			return nil
		}
	}
}

// explainListError adds the remedy to an error.
func explainListError(resource string, err error) error {
	switch {
	case apierrors.IsNotFound(err) && resource == v1alpha1.Resource:
		return ErrNoDefinition
	case apierrors.IsForbidden(err):
		return fmt.Errorf("listing %s: %w: %w", resource, ErrForbidden, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("listing %s: %w", resource, ErrUnauthorized)
	}
	return fmt.Errorf("listing %s: %w", resource, err)
}

// fullNode is a Node with the conditions, which agents do not read.
type fullNode struct {
	node   node
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

func (n *fullNode) view(rn *v1alpha1.RopewalkNode) view.Node {
	v := view.Node{Node: toMesh(&n.node, rn), Origin: view.Whole, Kubelet: conditionOf(n.Status.Conditions, "Ready"), Reported: reported(rn)}
	switch {
	case rn == nil || isAdoptable(rn):
		v.Origin = view.NoAgent
	case !ownedBy(rn, &n.node):
		v.Origin = view.OtherOwner
	case rn.Status.PodCIDRSource != "":
		v.PodCIDRs = nil
		for _, text := range rn.Status.PodCIDRs {
			if p, err := netip.ParsePrefix(string(text)); err == nil {
				v.PodCIDRs = append(v.PodCIDRs, p.Masked())
			}
		}
	}
	return v
}

// reported converts the status of a node's agent, for display.
func reported(rn *v1alpha1.RopewalkNode) view.Reported {
	if rn == nil {
		return view.Reported{Ready: view.Unknown}
	}
	st := &rn.Status
	t := view.Reported{
		Mode: mesh.Mode(st.Mode), MTU: int(st.MTU), Peers: int(st.Peers), SpreadsTo: int(st.SpreadsTo),
		Ready: conditionOf(st.Conditions, v1alpha1.ConditionReady), Generation: rn.Generation, ObservedGeneration: st.ObservedGeneration,
		KeyGeneration: st.KeyGeneration, KeyRequested: rn.Spec.KeyGeneration, AgentVersion: st.AgentVersion, KernelVersion: st.KernelVersion,
		OldKernel: oldKernel(st.KernelVersion) != "", MeshUID: st.MeshUID, MeshGeneration: st.MeshGeneration,
	}
	for _, c := range st.Conditions {
		if c.Type != v1alpha1.ConditionReady {
			t.Observed = append(t.Observed, view.Observation{Type: c.Type, Status: conditionOf(st.Conditions, c.Type), Reason: c.Reason, Message: c.Message})
		}
	}
	for _, e := range st.Endpoints {
		t.Endpoints = append(t.Endpoints, string(e))
	}
	for _, p := range st.PodCIDRs {
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
