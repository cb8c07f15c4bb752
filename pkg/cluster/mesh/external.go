// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gaissmai/bart"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// ExternalPeer is a WireGuard peer outside of the cluster, as an administrator defined it.
type ExternalPeer struct {
	Name       string // unique
	Created    time.Time
	Key        noise.PublicKey
	AllowedIPs []netip.Prefix
	Endpoint   netip.AddrPort // invalid: none, or not resolved yet
	// EndpointName is the host and port that Endpoint is resolved from; empty: none.
	EndpointName string
	Keepalive    uint16 // interval in seconds; 0: none
	PostQuantum  config.PostQuantum
	Selected     bool   // this node is to have the peer
	Invalid      string // why the definition cannot be used; empty: it can
}

// Refusal is the reason why nodes do not have an ExternalPeer.
type Refusal struct {
	Peer, Reason string
	Invalid      bool // no device accepts the definition; otherwise it conflicts with the cluster or with an older peer
}

// MaxExternalAllowedIPs is the number of allowed IPs that the CRD permits.
const MaxExternalAllowedIPs = 64

// The shortest allowed IPs of an external peer. A shorter one is a mistake: the tunnel is no default route.
const (
	minExternalBits4 = 8
	minExternalBits6 = 16
)

// minExternalBits returns the least length for the address's IP version.
func minExternalBits(a netip.Addr) int {
	if a.Is4() {
		return minExternalBits4
	}
	return minExternalBits6
}

// externalPlanner accepts or refuses external peers, the oldest first.
type externalPlanner struct {
	nodeKeys map[noise.PublicKey]string // of nodes, with their names
	cluster  bart.Table[string]         // the cluster's prefixes, with a description of each
	keys     map[noise.PublicKey]string // of accepted peers, with their names
	prefixes map[netip.Prefix]string    // likewise
	accepted []*ExternalPeer

	// The same peers by address, since there may be thousands.
	allowed   bart.Table[string] // allowed IPs, with the peers' names
	endpoints bart.Table[string] // configured addresses, as prefixes, likewise
}

// addExternal adds the external peers that this node is to have. All nodes refuse the same ones,
// whether selected or not. The address of a host name, which only some nodes know, decides for the
// node itself. A node's claim precedes a peer's, whichever is older: traffic for pods must not
// depend on peers.
func (t *tunnelPlanner) addExternal() {
	if len(t.cfg.External) == 0 {
		return
	}
	x := t.newExternalPlanner()
	all := slices.Clone(t.cfg.External)
	slices.SortFunc(all, func(a, b ExternalPeer) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name)) })
	for i := range all {
		p := &all[i]
		invalid := cmp.Or(p.Invalid, p.allowedIPsProblem())
		if reason := cmp.Or(invalid, x.conflict(p)); reason != "" {
			t.plan.Refused = append(t.plan.Refused, Refusal{p.Name, reason, invalid != ""})
			t.hold(p, x)
			continue
		}
		x.accept(p)
	}
	for _, p := range x.accepted {
		t.addAccepted(p, x)
	}
	slices.SortFunc(t.plan.Refused, func(a, b Refusal) int { return strings.Compare(a.Peer, b.Peer) })
}

// addAccepted adds an accepted peer, if this node is to have it.
func (t *tunnelPlanner) addAccepted(p *ExternalPeer, x *externalPlanner) {
	if !p.Selected {
		return
	}
	t.plan.Routes = append(t.plan.Routes, p.AllowedIPs...)
	t.plan.AcceptedPrefixes[p.Name] = p.AllowedIPs
	if why := x.resolvedConflict(p); why != "" {
		t.plan.Inside = append(t.plan.Inside, *p)
		t.plan.Notes = append(t.plan.Notes, fmt.Sprintf("this node does not have the RopewalkPeer %s, packets for it are dropped: %s", p.Name, why))
		return
	}
	t.plan.Peers = append(t.plan.Peers, p.peer())
}

// hold routes the prefixes that a refused peer had on this node into the tunnel, which drops
// packets for them. They must not leave unencrypted because a node has claimed the peer's key.
// Prefixes within the cluster's are left to those.
func (t *tunnelPlanner) hold(p *ExternalPeer, x *externalPlanner) {
	if !p.Selected {
		return
	}
	for _, a := range t.cfg.AcceptedPrefixes[p.Name] {
		if p.Invalid == "" && !slices.Contains(p.AllowedIPs, a) {
			continue
		}
		t.plan.AcceptedPrefixes[p.Name] = append(t.plan.AcceptedPrefixes[p.Name], a)
		_, covered := x.cluster.LookupPrefix(a)
		if !covered && !t.cfg.Cleartext && !slices.ContainsFunc(t.cfg.Services, a.Overlaps) {
			t.plan.Routes = append(t.plan.Routes, a)
		}
	}
}

// newExternalPlanner returns a planner that knows the cluster's keys and prefixes.
func (t *tunnelPlanner) newExternalPlanner() *externalPlanner {
	x := &externalPlanner{
		nodeKeys: map[noise.PublicKey]string{}, keys: map[noise.PublicKey]string{}, prefixes: map[netip.Prefix]string{},
	}
	for key, n := range t.keys {
		x.nodeKeys[key] = n.Name
	}
	for _, key := range t.cfg.OwnKeys {
		x.nodeKeys[key] = t.own.Name
	}
	for _, p := range t.cfg.Pods {
		x.cluster.Insert(p, "the cluster's pods")
	}
	for _, p := range t.cfg.Services {
		x.cluster.Insert(p, "the cluster's Services")
	}
	for name, pods := range t.pods {
		for _, p := range pods.accepted {
			x.cluster.Insert(p, "the pods of node "+name)
		}
	}
	for name := range t.pods { // of all nodes
		for _, a := range t.ownAddrs(name) {
			x.cluster.Insert(a, "an address of node "+name)
		}
	}
	return x
}

// allowedIPsProblem returns why no peer may have these allowed IPs, or "".
func (p *ExternalPeer) allowedIPsProblem() string {
	if len(p.AllowedIPs) == 0 {
		return "it has no allowed IPs"
	}
	for _, a := range p.AllowedIPs {
		at := a.Addr()
		switch {
		case at.Is4In6():
			return fmt.Sprintf("its allowed IP %s is an IPv4 prefix in IPv6 form", a)
		case a != a.Masked():
			return fmt.Sprintf("its allowed IP %s has bits after the prefix length", a)
		case a.Bits() < minExternalBits(at):
			return fmt.Sprintf("its allowed IP %s is too large", a)
		case !isUsableAddr(at):
			return fmt.Sprintf("its allowed IP %s is no global unicast prefix", a)
		}
	}
	return ""
}

// conflict returns why a valid peer is refused, or "".
func (x *externalPlanner) conflict(p *ExternalPeer) string {
	if node, taken := x.nodeKeys[p.Key]; taken {
		return "its key is the key of node " + node
	}
	if other, taken := x.keys[p.Key]; taken {
		return fmt.Sprintf("its key is the key of the older RopewalkPeer %s", other)
	}
	for _, a := range p.AllowedIPs {
		if owner := x.overlapping(a); owner != "" {
			return fmt.Sprintf("its allowed IP %s overlaps %s", a, owner)
		}
		if other, taken := x.prefixes[a]; taken {
			return fmt.Sprintf("its allowed IP %s is an allowed IP of the older RopewalkPeer %s", a, other)
		}
	}
	return x.endpointConflict(p)
}

// overlapping describes what of the cluster overlaps a prefix. It returns "" if nothing does.
func (x *externalPlanner) overlapping(p netip.Prefix) string {
	if owner, covered := x.cluster.LookupPrefix(p); covered {
		return owner
	}
	for _, owner := range x.cluster.Subnets(p) {
		return owner
	}
	return ""
}

// endpointConflict returns why a peer's endpoint is refused, or "". The tunnel's own messages to an endpoint in any allowed IP would be
// routed into the tunnel again.
func (x *externalPlanner) endpointConflict(p *ExternalPeer) string {
	at := p.configuredAddr()
	if owner, found := x.cluster.Lookup(at); found {
		return fmt.Sprintf("its endpoint %s lies in %s", at, owner)
	}
	if p.allows(at) {
		return fmt.Sprintf("its endpoint %s lies in its allowed IPs", at)
	}
	if older, found := x.allowed.Lookup(at); found {
		return fmt.Sprintf("its endpoint %s lies in the allowed IPs of the older RopewalkPeer %s", at, older)
	}
	for _, a := range p.AllowedIPs {
		for within, older := range x.endpoints.Subnets(a) {
			return fmt.Sprintf("its allowed IPs contain the endpoint %s of the older RopewalkPeer %s", within.Addr(), older)
		}
	}
	return ""
}

// configuredAddr returns the endpoint's address if it is part of the definition. An endpoint that
// is resolved from a name is invalid here.
func (p *ExternalPeer) configuredAddr() netip.Addr {
	if p.EndpointName != "" {
		return netip.Addr{}
	}
	return p.Endpoint.Addr()
}

// resolvedConflict is endpointConflict for the address of a host name, once all peers are accepted or refused. It concerns this node alone.
func (x *externalPlanner) resolvedConflict(p *ExternalPeer) string {
	if p.EndpointName == "" {
		return ""
	}
	at := p.Endpoint.Addr()
	if owner, found := x.cluster.Lookup(at); found {
		return fmt.Sprintf("its endpoint %s resolves to %s, which lies in %s", p.EndpointName, at, owner)
	}
	if other, found := x.allowed.Lookup(at); found {
		return fmt.Sprintf("its endpoint %s resolves to %s, which lies in the allowed IPs of the RopewalkPeer %s", p.EndpointName, at, other)
	}
	return ""
}

// allows reports whether an address lies in the peer's allowed IPs. An invalid one does not.
func (p *ExternalPeer) allows(a netip.Addr) bool {
	return slices.ContainsFunc(p.AllowedIPs, func(allowed netip.Prefix) bool { return allowed.Contains(a) })
}

// accept records what an accepted peer takes.
func (x *externalPlanner) accept(p *ExternalPeer) {
	x.keys[p.Key] = p.Name
	for _, a := range p.AllowedIPs {
		x.prefixes[a] = p.Name
		x.allowed.Insert(a, p.Name)
	}
	if at := p.configuredAddr(); at.IsValid() {
		x.endpoints.Insert(netip.PrefixFrom(at, at.BitLen()), p.Name)
	}
	x.accepted = append(x.accepted, p)
}

// peer returns the peer for the node's device.
func (p *ExternalPeer) peer() Peer {
	allowed := slices.Clone(p.AllowedIPs)
	slices.SortFunc(allowed, comparePrefixes)
	return Peer{
		External: p.Name, Key: p.Key, Endpoint: p.Endpoint, EndpointName: p.EndpointName, AllowedIPs: slices.Compact(allowed), Keepalive: p.Keepalive,
		PostQuantum: p.PostQuantum,
	}
}

// ExternalPeersOf returns the external peers of an earlier plan. They are used as long as the API server's definitions cannot be read.
func ExternalPeersOf(peers []Peer) (all []ExternalPeer) {
	for i := range peers {
		p := &peers[i]
		if p.IsExternal() {
			all = append(all, ExternalPeer{
				Name: p.External, Key: p.Key, AllowedIPs: p.AllowedIPs, Endpoint: p.Endpoint, EndpointName: p.EndpointName, Keepalive: p.Keepalive,
				PostQuantum: p.PostQuantum, Selected: true,
			})
		}
	}
	return all
}

// HeldPeersOf returns the external peers of an earlier plan that were refused, for while their definitions are unknown.
func HeldPeersOf(accepted map[string][]netip.Prefix, peers []Peer) (all []ExternalPeer) {
	for _, name := range slices.Sorted(maps.Keys(accepted)) {
		if !slices.ContainsFunc(peers, func(p Peer) bool { return p.External == name }) {
			all = append(all, ExternalPeer{Name: name, Selected: true, Invalid: "its definition is not known yet"})
		}
	}
	return all
}

// IsExternal reports whether the peer is no node.
func (p *Peer) IsExternal() bool { return p.External != "" }

// Rank returns the number of older nodes in mesh mode. The agents of the oldest few nodes write the status of RopewalkPeers, so that not
// all do.
func Rank(self *Node, nodes []Node) (rank int) {
	for _, n := range others(self.Name, ModeMesh, nodes) {
		if compareAge(n, self) < 0 {
			rank++
		}
	}
	return rank
}
