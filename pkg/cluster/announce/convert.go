// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Agent returns what an announcement says; nil: the node has no agent. It skips values that it cannot parse: the API server has validated them, and
// one node's mistake must not stop the others.
func Agent(s *v1alpha1.AnnouncementSpec) *mesh.Agent {
	if s.Mode == "" {
		return nil
	}
	a := &mesh.Agent{Mode: mesh.Mode(s.Mode), Gathers: s.Gathers, MTU: int(s.MTU), EncryptsNodes: s.EncryptsNodes}
	a.Key, _ = noise.ParseBase64[noise.PublicKey](string(s.PublicKey))
	a.NextKey, _ = noise.ParseBase64[noise.PublicKey](string(s.NextPublicKey))
	for _, text := range s.Endpoints {
		if e, err := netip.ParseAddrPort(string(text)); err == nil {
			a.Endpoints = append(a.Endpoints, e)
		}
	}
	if p := s.SpreadPorts; p != nil && p.First >= 1024 && p.First <= p.Last && p.Last <= 65535 {
		a.Ports = spread.Ports{First: uint16(p.First), Last: uint16(p.Last)}
	}
	for _, p := range s.Plans {
		switch p.IPFamily {
		case v1alpha1.IPv4:
			a.Plans.V4 = portPlan(p.Ports)
		case v1alpha1.IPv6:
			a.Plans.V6 = portPlan(p.Ports)
		}
	}
	return a
}

// portPlan converts a plan. It clamps invalid ports to values that pkg/cluster/mesh rejects.
func portPlan(ports []v1alpha1.Port) (plan []uint16) {
	for _, p := range ports[:min(len(ports), spread.MaxPorts+1)] {
		plan = append(plan, uint16(max(0, min(p, 65535))))
	}
	return plan
}

// Addrs returns the sorted addresses of an announcement's endpoints.
func Addrs(s *v1alpha1.AnnouncementSpec) (all []netip.Addr) {
	for _, text := range s.Endpoints {
		if e, err := netip.ParseAddrPort(string(text)); err == nil {
			all = append(all, e.Addr().Unmap())
		}
	}
	return SortedAddrs(all)
}

// SortedAddrs sorts addresses, and leaves each once.
func SortedAddrs(all []netip.Addr) []netip.Addr {
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// EndpointsOf returns the node's addresses, or the one of spec.endpoint, with the tunnel's port. Other nodes ignore any other
// endpoint.
func EndpointsOf(n mesh.Node, port uint16) (all []v1alpha1.Endpoint) {
	addrs := n.Addrs
	if n.Endpoint.IsValid() {
		addrs = []netip.Addr{n.Endpoint}
	}
	for _, a := range mesh.UsableAddrs(addrs) {
		all = append(all, v1alpha1.Endpoint(netip.AddrPortFrom(a, port).String()))
	}
	return all
}

// maxCIDRs is the maximum number of prefixes in an announcement. Others read the prefixes at their source.
const maxCIDRs = 16

// CIDRsOf leaves out IPv4 prefixes in IPv6 form, which no node may have. The API server rejects an
// announcement with such a prefix. Other nodes may be able to write it for this one (CiliumNodes).
func CIDRsOf(n mesh.Node) (all []v1alpha1.CIDR) {
	for _, p := range n.PodCIDRs[:min(len(n.PodCIDRs), maxCIDRs)] {
		if !p.Addr().Is4In6() {
			all = append(all, v1alpha1.CIDR(p.String()))
		}
	}
	return all
}

// PortsOf converts a range.
func PortsOf(p spread.Ports) *v1alpha1.Ports {
	return &v1alpha1.Ports{First: int32(p.First), Last: int32(p.Last)}
}

// Same reports whether two announcements of any writers say the same.
func Same(a, b *v1alpha1.AnnouncementSpec) bool {
	x, y := *a, *b
	x.Writer, y.Writer = "", ""
	for _, s := range []*v1alpha1.AnnouncementSpec{&x, &y} {
		if len(s.Endpoints) == 0 {
			s.Endpoints = nil
		}
		if len(s.PodCIDRs) == 0 {
			s.PodCIDRs = nil
		}
	}
	return reflect.DeepEqual(x, y)
}

// Full returns an announcement with all fields. A cluster whose CRD lacks one of them refuses it.
func Full() v1alpha1.AnnouncementSpec {
	return v1alpha1.AnnouncementSpec{
		Mode: v1alpha1.ModeMesh, PublicKey: publicKey(1), NextPublicKey: publicKey(2), Endpoints: []v1alpha1.Endpoint{"192.0.2.1:51820"},
		PodCIDRs: []v1alpha1.CIDR{"192.0.2.0/24"}, PodCIDRSource: "cilium", MTU: mesh.MinMTU, SpreadPorts: PortsOf(spread.DefaultPorts),
		Plans: []v1alpha1.Plan{{IPFamily: v1alpha1.IPv4, Ports: []v1alpha1.Port{1024}}}, Gathers: true, EncryptsNodes: true, Writer: "check",
	}
}

func publicKey(first byte) v1alpha1.PublicKey {
	return v1alpha1.PublicKey(noise.PublicKey{first}.Base64())
}
