// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/pkg/kube/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/mesh"
	"github.com/ropewalk/ropewalk/pkg/noise"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// toMesh reads the API's objects. What cannot be parsed is left out: the API server has checked it before, and one node's
// mistake is not to stop the others. A RopewalkNode that another node owns, as one that had this node's name, tells nothing.
func toMesh(n *node, rn *v1alpha1.RopewalkNode) mesh.Node {
	m := mesh.Node{Name: n.Name, Created: n.CreationTimestamp.Time}
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == internalIP {
			m.Addrs = append(m.Addrs, ip)
		}
	}
	for _, text := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			m.PodCIDRs = append(m.PodCIDRs, p.Masked())
		}
	}
	if rn == nil || !ownedBy(rn, n) || !rn.DeletionTimestamp.IsZero() {
		return m
	}
	m.OptOut = rn.Spec.OptOut
	m.Endpoint, _ = netip.ParseAddr(rn.Spec.Endpoint)
	if rn.Status.Mode != "" {
		m.Agent = toAgent(&rn.Status)
	}
	return m
}

// ownedBy tells whether a RopewalkNode goes with this very node. One that nobody owns stays when its node goes, and would be
// the next one's of that name.
func ownedBy(rn *v1alpha1.RopewalkNode, n *node) bool {
	return slices.ContainsFunc(rn.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.APIVersion == "v1" && o.Kind == "Node" && o.Name == n.Name && o.UID == n.UID
	})
}

func toAgent(st *v1alpha1.NodeStatus) *mesh.Agent {
	a := &mesh.Agent{Mode: mesh.Mode(st.Mode), Gathers: st.Gathers, MTU: int(st.MTU)}
	a.Key, _ = noise.ParseBase64[noise.PublicKey](string(st.PublicKey))
	a.NextKey, _ = noise.ParseBase64[noise.PublicKey](string(st.NextPublicKey))
	for _, text := range st.Endpoints {
		if e, err := netip.ParseAddrPort(string(text)); err == nil {
			a.Endpoints = append(a.Endpoints, e)
		}
	}
	if p := st.SpreadPorts; p != nil && p.First >= 1024 && p.First <= p.Last && p.Last <= 65535 {
		a.Ports = spread.Ports{First: uint16(p.First), Last: uint16(p.Last)}
	}
	for _, p := range st.Plans {
		switch p.IPFamily {
		case v1alpha1.IPv4:
			a.Plans.V4 = toPortPlan(p.Ports)
		case v1alpha1.IPv6:
			a.Plans.V6 = toPortPlan(p.Ports)
		}
	}
	return a
}

// toPortPlan reads a plan. What is no port is none in pkg/mesh either.
func toPortPlan(ports []v1alpha1.Port) (plan []uint16) {
	for _, p := range ports[:min(len(ports), spread.MaxPorts+1)] {
		plan = append(plan, uint16(max(0, min(p, 65535))))
	}
	return plan
}

// sameNodeObject compares what the cluster itself tells of two nodes.
func sameNodeObject(a, b mesh.Node) bool {
	return a.Name == b.Name && a.Created.Equal(b.Created) && slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.PodCIDRs, b.PodCIDRs)
}
