// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// toMesh converts the API's objects. It skips values that it cannot parse: the API server has validated them, and one node's
// mistake must not stop the others. It ignores a RopewalkNode that belongs to another node, for example to an earlier one of
// this name.
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
	m.OptOut = n.runsNoAgent()
	if rn == nil || !ownedBy(rn, n) && !isAdoptable(rn) || !rn.DeletionTimestamp.IsZero() {
		return m
	}
	m.Endpoint, _ = netip.ParseAddr(rn.Spec.Endpoint)
	m.Port = uint16(max(0, min(rn.Spec.Port, 65535)))
	if rn.Status.Mode != "" {
		m.Agent = toAgent(&rn.Status)
	}
	return m
}

// ownedBy reports whether a RopewalkNode belongs to this very node. Without an owner, it would outlive its node, and pass to
// the next one of that name.
func ownedBy(rn *v1alpha1.RopewalkNode, n *node) bool {
	return slices.ContainsFunc(rn.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.APIVersion == "v1" && o.Kind == "Node" && o.Name == n.Name && o.UID == n.UID
	})
}

// isAdoptable reports whether an administrator, or a tool that applies manifests, created the RopewalkNode before the node's agent
// did. Its spec applies. Agents create theirs with an owner; one with a status but no owner is not trusted.
func isAdoptable(rn *v1alpha1.RopewalkNode) bool {
	return !hasNodeAsOwner(rn) && rn.Status.Mode == "" && rn.DeletionTimestamp.IsZero()
}

// hasNodeAsOwner reports whether any Node owns the RopewalkNode.
func hasNodeAsOwner(rn *v1alpha1.RopewalkNode) bool {
	return slices.ContainsFunc(rn.OwnerReferences, func(o metav1.OwnerReference) bool { return o.APIVersion == "v1" && o.Kind == "Node" })
}

func toAgent(st *v1alpha1.NodeStatus) *mesh.Agent {
	a := &mesh.Agent{Mode: mesh.Mode(st.Mode), Gathers: st.Gathers, MTU: int(st.MTU), EncryptsNodes: st.EncryptsNodes}
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

// toPortPlan converts a plan. It clamps invalid ports to values that pkg/cluster/mesh rejects.
func toPortPlan(ports []v1alpha1.Port) (plan []uint16) {
	for _, p := range ports[:min(len(ports), spread.MaxPorts+1)] {
		plan = append(plan, uint16(max(0, min(p, 65535))))
	}
	return plan
}

// sameNodeObject compares the fields that come from the Node objects.
func sameNodeObject(a, b mesh.Node) bool {
	return a.Name == b.Name && a.Created.Equal(b.Created) && slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.PodCIDRs, b.PodCIDRs) &&
		a.OptOut == b.OptOut
}

// endpointsOf returns the node's addresses, or the one of spec.endpoint, with the tunnel's port. Other nodes ignore any other
// endpoint.
func endpointsOf(n mesh.Node, port uint16) (all []v1alpha1.Endpoint) {
	addrs := n.Addrs
	if n.Endpoint.IsValid() {
		addrs = []netip.Addr{n.Endpoint}
	}
	for _, a := range mesh.UsableAddrs(addrs) {
		all = append(all, v1alpha1.Endpoint(netip.AddrPortFrom(a, port).String()))
	}
	return all
}

// maxPublishedCIDRs is the maximum number of prefixes in a status. Others read the prefixes at their source.
const maxPublishedCIDRs = 16

// cidrsOf leaves out IPv4 prefixes in IPv6 form, which no node may have: the API server rejects a status with one, and other nodes may be able to
// write such a prefix for this one (CiliumNodes).
func cidrsOf(n mesh.Node) (all []v1alpha1.CIDR) {
	for _, p := range n.PodCIDRs[:min(len(n.PodCIDRs), maxPublishedCIDRs)] {
		if !p.Addr().Is4In6() {
			all = append(all, v1alpha1.CIDR(p.String()))
		}
	}
	return all
}

func portsOf(p spread.Ports) *v1alpha1.Ports {
	return &v1alpha1.Ports{First: int32(p.First), Last: int32(p.Last)}
}

// withTransitionTime returns a condition with the time since which it has its status.
func withTransitionTime(c metav1.Condition, before []metav1.Condition) metav1.Condition {
	all := slices.Clone(before)
	meta.SetStatusCondition(&all, c)
	return *meta.FindStatusCondition(all, c.Type)
}

// parseCIDRs parses a field of the RopewalkMesh.
func parseCIDRs(field string, texts []v1alpha1.CIDR) (all []netip.Prefix, err error) {
	for _, t := range texts {
		p, err := netip.ParsePrefix(string(t))
		if err != nil {
			return nil, fmt.Errorf("spec.%s: %w", field, err)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// selectorText returns a selector as kubectl takes it, "" for none.
func selectorText(s *v1alpha1.NodeSelector) string {
	selector, err := s.Selector()
	if err != nil {
		return "invalid"
	}
	return selector.String()
}
