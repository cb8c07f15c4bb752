// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/pkg/cluster/announce"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// toMesh converts the API's objects. It skips values that it cannot parse: the API server has validated them, and one node's
// mistake must not stop the others. It ignores an announcement of another node, for example an earlier one of this name.
func toMesh(n *node, ra *v1alpha1.RopewalkAnnouncement) mesh.Node {
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
	m.Endpoint, _ = netip.ParseAddr(n.Settings.Endpoint)
	m.Port = uint16(max(0, min(n.Settings.Port, 65535)))
	if announces(ra, n) {
		m.Agent = announce.Agent(&ra.Spec)
	}
	return m
}

// announces reports whether an announcement is this very node's.
func announces(ra *v1alpha1.RopewalkAnnouncement, n *node) bool {
	return ra != nil && ownedBy(ra, n) && ra.DeletionTimestamp.IsZero()
}

// nodeSettings are settings of a node that others follow. Administrators write them.
type nodeSettings struct {
	Endpoint string
	Port     int32
}

// settingsFor returns what a RopewalkNode sets of a node. It ignores one of another node. An administrator may create it before there is a Node to
// own it.
func settingsFor(n *node, rn *v1alpha1.RopewalkNode) nodeSettings {
	if rn == nil || hasNodeAsOwner(rn) && !ownedBy(rn, n) || !rn.DeletionTimestamp.IsZero() {
		return nodeSettings{}
	}
	return nodeSettings{rn.Spec.Endpoint, rn.Spec.Port}
}

// withSettings returns a copy of a node with its settings. It shares everything else.
func withSettings(n *node, rn *v1alpha1.RopewalkNode) *node {
	c := *n
	c.Settings = settingsFor(n, rn)
	return &c
}

// ownedBy reports whether an object belongs to this very node. Without an owner, it would outlive its node, and pass to
// the next one of that name.
func ownedBy(object metav1.Object, n *node) bool {
	return slices.ContainsFunc(object.GetOwnerReferences(), func(o metav1.OwnerReference) bool {
		return o.APIVersion == "v1" && o.Kind == "Node" && o.Name == n.Name && o.UID == n.UID
	})
}

// hasNodeAsOwner reports whether any Node owns an object.
func hasNodeAsOwner(object metav1.Object) bool {
	return slices.ContainsFunc(object.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.APIVersion == "v1" && o.Kind == "Node" })
}

// sameNodeObject compares the fields that come from the Node objects.
func sameNodeObject(a, b mesh.Node) bool {
	return a.Name == b.Name && a.Created.Equal(b.Created) && slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.PodCIDRs, b.PodCIDRs) &&
		a.OptOut == b.OptOut
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

var postQuantumPolicies = map[v1alpha1.PostQuantum]config.PostQuantum{
	"":                           config.PostQuantumDefault,
	v1alpha1.PostQuantumNever:    config.PostQuantumOff,
	v1alpha1.PostQuantumAuto:     config.PostQuantumAuto,
	v1alpha1.PostQuantumRequired: config.PostQuantumRequired,
}

func parsePostQuantum(p v1alpha1.PostQuantum) (config.PostQuantum, error) {
	policy, known := postQuantumPolicies[p]
	if !known {
		return policy, fmt.Errorf("spec.postQuantum is %.20q: want Auto, Never or Required", p)
	}
	return policy, nil
}
