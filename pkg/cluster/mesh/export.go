// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/gaissmai/bart"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// ExportConfig has the parameters of Export.
type ExportConfig struct {
	// PublicAddrs has, by node, the address at which the other cluster reaches it instead of those that the nodes use among each other.
	PublicAddrs map[string]netip.Addr
	// BehindNAT leaves out the endpoints: the nodes begin.
	BehindNAT bool
	// Keepalive is the interval of keepalive messages that the other cluster sends to the nodes, in seconds; 0: none.
	Keepalive uint16
	// Gateway is the name of the only node that is exported, with the pods of all; empty: each node is, with its own pods.
	Gateway string
	// Pods replaces the pod prefixes of the Gateway, and contains those of all nodes; empty: those of the nodes.
	Pods []netip.Prefix
	// Via is the name of the node of the other cluster by which its other nodes reach these; empty: each reaches them itself.
	Via string
}

// MaxExternalAllowedIPs is the number of allowed IPs that the CRD permits.
const MaxExternalAllowedIPs = 64

// Export returns the nodes in mode mesh as peers of another cluster, by the nodes' names. Their allowed IPs are the nodes' pods: the nodes' own
// addresses would contain the endpoints. skipped has the nodes that cannot be peers yet. The error names nodes and values that the
// other cluster could not use: an incomplete manifest would remove peers there.
func Export(nodes []Node, cfg ExportConfig) (peers []ExternalPeer, skipped []Problem, err error) {
	pods, keys := assignPrefixes(nodes, nil), claims[noise.PublicKey]{}
	all := others("", ModeMesh, nodes)
	for i := range nodes {
		if n := &nodes[i]; !n.OptOut && !slices.Contains(all, n) {
			skipped = append(skipped, Problem{n.Name, "it has no agent in mode mesh with a key"})
		}
	}
	var errs []error
	for _, n := range all {
		own := pods[n.Name]
		switch owner := keys.claim(n.Agent.Key, n); {
		case len(own.problems) > 0:
			errs = append(errs, fmt.Errorf("node %s: %s", n.Name, strings.Join(own.problems, ", ")))
		case n.Agent.Key.IsZero():
			skipped = append(skipped, Problem{n.Name, "it has not published its key yet"})
		case len(own.accepted) == 0:
			skipped = append(skipped, Problem{n.Name, "no pod prefixes of it are known"})
		case owner != nil:
			errs = append(errs, fmt.Errorf("node %s: its key is the key of node %s", n.Name, owner.Name))
		default:
			p, err := n.export(own.accepted, cfg)
			peers, errs = append(peers, p), append(errs, err)
		}
	}
	slices.SortFunc(peers, func(a, b ExternalPeer) int { return strings.Compare(a.Name, b.Name) })
	sortProblems(skipped)
	if err = errors.Join(errs...); err == nil && cfg.Gateway != "" {
		peers, err = behindGateway(peers, cfg)
	}
	return peers, skipped, errors.Join(err, unusable(peers))
}

// unusable returns an error for peers that no cluster could use beside each other. peers is sorted.
func unusable(peers []ExternalPeer) error {
	var errs []error
	var pods bart.Table[prefixOwner]
	for i := range peers {
		if why := peers[i].allowedIPsProblem(); why != "" {
			errs = append(errs, fmt.Errorf("node %s: %s", peers[i].Name, why))
			continue
		}
		for _, a := range peers[i].AllowedIPs {
			pods.Insert(a, prefixOwner{a, peers[i].Name})
		}
	}
	at := map[netip.AddrPort]string{}
	for i := range peers {
		p := &peers[i]
		if !p.Endpoint.IsValid() {
			continue
		}
		if in, found := pods.Lookup(p.Endpoint.Addr()); found {
			errs = append(errs, fmt.Errorf("node %s: its endpoint %s lies in the pods %s of node %s", p.Name, p.Endpoint, in.prefix, in.node))
		}
		if other, taken := at[p.Endpoint]; taken {
			errs = append(errs, fmt.Errorf("node %s: its endpoint %s is the endpoint of node %s", p.Name, p.Endpoint, other))
		}
		at[p.Endpoint] = p.Name
	}
	return errors.Join(errs...)
}

// prefixOwner is a prefix of a node's pods.
type prefixOwner struct {
	prefix netip.Prefix
	node   string
}

// behindGateway returns the gateway alone, with the pods of all peers.
func behindGateway(peers []ExternalPeer, cfg ExportConfig) ([]ExternalPeer, error) {
	i := slices.IndexFunc(peers, func(p ExternalPeer) bool { return p.Name == cfg.Gateway })
	if i < 0 {
		return nil, fmt.Errorf("the gateway %s is no node in mode mesh with a key and pods", cfg.Gateway)
	}
	var all []netip.Prefix
	for _, p := range peers {
		for _, a := range p.AllowedIPs {
			if len(cfg.Pods) > 0 && !slices.ContainsFunc(cfg.Pods, func(c netip.Prefix) bool { return contains(c, a) }) {
				return nil, fmt.Errorf("node %s: its pods %s are outside of the given prefixes", p.Name, a)
			}
			all = append(all, a)
		}
	}
	g := peers[i]
	if g.AllowedIPs = mergePrefixes(append(all, cfg.Pods...)); len(g.AllowedIPs) > MaxExternalAllowedIPs {
		return nil, fmt.Errorf("the pods of all nodes have %d prefixes, a RopewalkPeer can have %d: give the prefixes of the cluster's pods", len(g.AllowedIPs), MaxExternalAllowedIPs)
	}
	return []ExternalPeer{g}, nil
}

// export returns a node as a peer of another cluster.
func (n *Node) export(pods []netip.Prefix, cfg ExportConfig) (ExternalPeer, error) {
	p := ExternalPeer{Name: n.Name, Key: n.Agent.Key, AllowedIPs: mergePrefixes(pods), Keepalive: cfg.Keepalive, Selected: true, Gateway: cfg.Via}
	if len(p.AllowedIPs) > MaxExternalAllowedIPs {
		return p, fmt.Errorf("node %s: its pods have %d prefixes, a RopewalkPeer can have %d", n.Name, len(p.AllowedIPs), MaxExternalAllowedIPs)
	}
	if cfg.BehindNAT || cfg.Gateway != "" && cfg.Gateway != n.Name {
		return p, nil
	}
	published := n.endpoints()
	if len(published) == 0 {
		return p, fmt.Errorf("node %s: it has published no endpoint of its own", n.Name)
	}
	p.Endpoint = published[0]
	if cfg.PublicAddrs != nil {
		public := cfg.PublicAddrs[n.Name]
		if !public.IsValid() {
			return p, fmt.Errorf("node %s: it has no ExternalIP", n.Name)
		}
		p.Endpoint = netip.AddrPortFrom(public, p.Endpoint.Port())
	}
	return p, nil
}

// mergePrefixes returns the fewest prefixes that have the same addresses and that an external peer may have, in order.
func mergePrefixes(all []netip.Prefix) (merged []netip.Prefix) {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, comparePrefixes)
	for _, p := range sorted {
		if n := len(merged); n > 0 && contains(merged[n-1], p) {
			continue
		}
		merged = append(merged, p)
		for n := len(merged); n > 1 && p.Bits() > minExternalBits(p.Addr()); n = len(merged) { // two halves of one prefix
			around := netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked()
			if merged[n-2].Bits() != p.Bits() || !around.Contains(merged[n-2].Addr()) {
				break
			}
			p = around
			merged = append(merged[:n-2], p)
		}
	}
	return merged
}

// RefusedExports returns why the nodes of a cluster would refuse peers, for those of the given names. It knows neither the flags of the
// agents nor the addresses of host names. The error is that of Tunnel.
func RefusedExports(nodes []Node, all []ExternalPeer, exported func(name string) bool) ([]Refusal, error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	self := nodes[0]
	self.OptOut = false // it need not take part to know what others refuse
	plan, err := Tunnel(self.Name, append([]Node{self}, nodes[1:]...), TunnelConfig{Cleartext: true, External: all})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(plan.Refused, func(r Refusal) bool { return !exported(r.Peer) }), nil
}
