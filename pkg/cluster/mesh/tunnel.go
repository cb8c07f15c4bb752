// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// TunnelConfig has the parameters of Tunnel that are the same for all nodes.
type TunnelConfig struct {
	// Bypass has addresses that are never routed into the tunnel: the API server's, through which
	// nodes learn each other's keys.
	Bypass []netip.Addr
	// Cleartext lets traffic for pods of a node that cannot be a peer leave unencrypted. Otherwise it is routed into the
	// tunnel, which drops and counts it.
	Cleartext bool
	// LeadsInto reports whether traffic for a node's pods is to take the tunnel, with Cleartext; nil: for each peer. Without Cleartext it always is.
	LeadsInto func(node string, key noise.PublicKey) bool
	// Pods has the prefixes of the cluster's pods, including pods of unknown nodes. Without Cleartext they are routed into the
	// tunnel. No node may have pods outside of them. Empty: a node may have any prefix.
	Pods []netip.Prefix
	// KeyOwners has the known owners of keys. An owner keeps its key for as long as it publishes it.
	KeyOwners KeyOwners
	// Services has the prefixes of the cluster's Services, if they are known. No external peer may have them.
	Services []netip.Prefix
	// External are the peers outside of the cluster.
	External []ExternalPeer
	// AcceptedPrefixes are from the last plan.
	AcceptedPrefixes map[string][]netip.Prefix
	// OwnKeys are this node's public keys, published or not.
	OwnKeys []noise.PublicKey
	// Keepalive is the persistent keepalive of the nodes, in seconds; 0: none.
	Keepalive uint16
	// Nodes is for traffic to the addresses of other nodes.
	Nodes NodeTraffic
}

// KeyOwners maps a key to the name of its node.
type KeyOwners map[noise.PublicKey]string

// TunnelPlan is the desired state of a node's tunnel.
type TunnelPlan struct {
	Peers []Peer // sorted by key
	// Routes lead into the tunnel. They are sorted and distinct.
	Routes []netip.Prefix
	// Unrouted are pods of nodes that take part, to which no route leads into the tunnel, with Cleartext.
	Unrouted []netip.Prefix
	// Exempt are the parts of Routes that bypass the tunnel, sorted and distinct. They are this
	// node's own prefixes, addresses of nodes and of the API server, and pods of nodes that opted
	// out.
	Exempt []netip.Prefix
	// Beside are Exempt, and such parts of the cluster's prefixes of pods, which Routes may lack. A
	// packet to them beside the tunnel is no fault. They are sorted and distinct.
	Beside []netip.Prefix
	// Pods are this node's own prefixes, except prefixes that belong to another node.
	Pods []netip.Prefix
	// NodeRoutes are addresses of other nodes that lead into the tunnel, as prefixes. They are sorted and distinct.
	NodeRoutes []netip.Prefix
	// ClearNodes are the names of the peers to which traffic between nodes is not encrypted although this node would encrypt it, sorted.
	ClearNodes []string
	// MTU is the remote tunnel's MTU of those Routes and NodeRoutes whose node has published it, in bytes and at least MinMTU.
	MTU map[netip.Prefix]int
	// WithoutTunnel are the names of the nodes that are no peers although they have not opted out, sorted. Traffic for their pods
	// is dropped, or unencrypted with Cleartext.
	WithoutTunnel []string
	// UnknownPods are the names of the peers whose pod prefixes are unknown, sorted. Traffic for their pods has no route into the tunnel
	// and leaves unencrypted, with or without Cleartext. None if the cluster's prefixes are configured: then Cleartext alone decides.
	UnknownPods []string
	Refused     []Refusal      // external peers that all nodes refuse, sorted by name
	Inside      []ExternalPeer // accepted peers that this node does not have: their names resolve to addresses of the cluster or of another peer
	// AcceptedPrefixes are the allowed IPs of the external peers that this node has, by name, and
	// former ones of peers that are refused now.
	AcceptedPrefixes map[string][]netip.Prefix
	// RefusedPrefixes is the number of prefixes and addresses of other nodes that are not used, because they are not theirs alone.
	RefusedPrefixes int
	Problems        []Problem // of other nodes
	Notes           []string  // problems of this node, which other nodes find as well
}

// Peer is a key of another node, or an external peer. It holds no secrets.
type Peer struct {
	Node string `json:"node,omitempty"`
	// External is the name of the RopewalkPeer; empty: the peer is a node.
	External string          `json:"external,omitempty"`
	Key      noise.PublicKey `json:"key"`
	// Endpoint of the node; invalid: unknown, and the device keeps the last one.
	Endpoint   netip.AddrPort `json:"endpoint,omitzero"`
	AllowedIPs []netip.Prefix `json:"allowedIPs,omitempty"` // sorted; none for a key that is not in use yet
	// Replaces is the current key of the same node, if this is its next key; otherwise zero. See AssignByHandshake.
	Replaces noise.PublicKey `json:"succeeds,omitzero"`

	// EndpointName is the host:port of an external peer, which the device resolves again when it needs to; empty: none.
	EndpointName string `json:"endpointName,omitempty"`
	Keepalive    uint16 `json:"keepalive,omitempty"` // in seconds; 0: none
	// PostQuantum is the policy of an external peer; the zero value: the device's.
	PostQuantum config.PostQuantum `json:"postQuantum,omitzero"`
}

// KeyOwnersOf returns the owners of the nodes' keys in a plan.
func KeyOwnersOf(peers []Peer) KeyOwners {
	h := make(KeyOwners, len(peers))
	for i := range peers {
		if !peers[i].IsExternal() {
			h[peers[i].Key] = peers[i].Node
		}
	}
	return h
}

// ErrUnknownNode means that the node itself is not among the nodes.
var ErrUnknownNode = errors.New("the cluster has no such node")

// Tunnel returns the plan of a node. The error is ErrUnknownNode.
func Tunnel(self string, nodes []Node, cfg TunnelConfig) (TunnelPlan, error) {
	own := find(self, nodes)
	if own == nil {
		return TunnelPlan{}, fmt.Errorf("%w: %s", ErrUnknownNode, self)
	}
	if own.OptOut {
		return TunnelPlan{}, nil
	}
	t := &tunnelPlanner{cfg: cfg, own: own, pods: assignPrefixes(nodes, cfg.Pods, cfg.Services), addrs: map[string][]netip.Addr{}, internal: map[string][]netip.Addr{}, forwarded: claims[netip.AddrPort]{}}
	t.plan.AcceptedPrefixes = map[string][]netip.Prefix{}
	t.plan.MTU, t.plan.Pods, t.plan.Notes = map[netip.Prefix]int{}, t.pods[self].accepted, t.pods[self].problems
	if len(own.PodCIDRs) == 0 {
		t.plan.Notes = append(t.plan.Notes, "no pod prefixes of this node are known, so other nodes send nothing to its pods through the tunnel: "+
			"see --pod-cidr-source")
	}
	t.podOwners = newPodOwners(t.pods)
	all := others(self, ModeMesh, nodes)
	t.assignKeys(all)
	t.assignAddrs(nodes)
	t.plan.Peers, t.plan.Routes = make([]Peer, 0, len(all)), make([]netip.Prefix, 0, 2*len(all)) // growing would double what thousands of nodes take
	for _, n := range all {
		t.addPeer(n)
	}
	if cfg.Cleartext {
		t.listUnrouted(nodes)
	} else {
		t.routeAllPods(self, nodes)
	}
	t.addExternal()
	t.addExemptions(nodes)
	t.routeNodes(nodes)
	t.listWithoutTunnel(nodes)
	p := &t.plan
	slices.SortFunc(p.Peers, func(a, b Peer) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	sortProblems(p.Problems)
	return *p, nil
}

type tunnelPlanner struct {
	cfg       TunnelConfig
	own       *Node
	keys      claims[noise.PublicKey]
	pods      map[string]*podPrefixes // by node
	addrs     map[string][]netip.Addr // by node, the accepted ones
	internal  map[string][]netip.Addr // by node, the accepted InternalIPs that spec.endpoint replaces as endpoints
	forwarded claims[netip.AddrPort]  // endpoints at addresses that administrators set, which nodes behind one NAT share
	podOwners *podOwners
	plan      TunnelPlan
}

func (t *tunnelPlanner) addProblem(n *Node, format string, args ...any) {
	why := fmt.Sprintf(format, args...)
	if n.Name == t.own.Name {
		t.plan.Notes = append(t.plan.Notes, why)
		return
	}
	t.plan.Problems = append(t.plan.Problems, Problem{n.Name, why})
}

// assignKeys assigns each key to one node. This node keeps its own keys. Then known owners keep theirs. Then a current key
// takes precedence over a next key. nodes is sorted, the oldest node first.
func (t *tunnelPlanner) assignKeys(nodes []*Node) {
	t.keys = claims[noise.PublicKey]{}
	if a := t.own.Agent; a != nil {
		t.claimKey(a.Key, t.own)
		t.claimKey(a.NextKey, t.own)
	}
	for _, n := range nodes {
		for _, key := range []noise.PublicKey{n.Agent.Key, n.Agent.NextKey} {
			if t.cfg.KeyOwners[key] == n.Name {
				t.claimKey(key, n)
			}
		}
	}
	for _, n := range nodes {
		t.claimKey(n.Agent.Key, n)
	}
	for _, n := range nodes {
		t.claimKey(n.Agent.NextKey, n)
	}
}

func (t *tunnelPlanner) claimKey(key noise.PublicKey, n *Node) {
	if !key.IsZero() {
		t.keys.claim(key, n)
	}
}

// assignAddrs assigns each node its addresses, except addresses among another node's pods and an
// older node's addresses. Nodes for which administrators set the same address are behind one NAT:
// each has its own port there.
func (t *tunnelPlanner) assignAddrs(nodes []Node) {
	sorted := make([]*Node, len(nodes))
	for i := range nodes {
		sorted[i] = &nodes[i]
		if nodes[i].Name != t.own.Name {
			t.plan.RefusedPrefixes += t.pods[nodes[i].Name].refused
		}
	}
	slices.SortFunc(sorted, compareAge)
	addrOwners := claims[netip.Addr]{}
	var set []*Node // whose address administrators set
	for _, n := range sorted {
		for _, a := range n.addrs() {
			shares := false
			if slices.ContainsFunc(t.cfg.Services, func(p netip.Prefix) bool { return p.Contains(a) }) {
				t.refuseAddr(n, "its address %s is not used: it lies in the cluster's Service prefixes", a)
			} else if owner := t.podOwners.owner(a); owner != "" && owner != n.Name {
				t.refuseAddr(n, "its address %s is not used: it lies in the pod prefixes of node %s", a, owner)
			} else if older := addrOwners.claim(a, n); older == nil {
				t.addrs[n.Name] = append(t.addrs[n.Name], a)
				shares = n.Endpoint.IsValid()
			} else if shares = n.Endpoint.IsValid() && older.Endpoint == n.Endpoint; !shares {
				t.refuseAddr(n, "its address %s is not used: it is an address of the older node %s", a, older.Name)
			}
			if shares && n.Agent != nil {
				set = append(set, n)
			}
		}
	}
	t.assignInternal(sorted, addrOwners)
	t.assignForwarded(set)
}

// refuseAddr counts an address that a node may not have.
func (t *tunnelPlanner) refuseAddr(n *Node, format string, args ...any) {
	if n.Name != t.own.Name {
		t.plan.RefusedPrefixes++
	}
	t.addProblem(n, format, args...)
}

// assignInternal also assigns nodes with an address that administrators set their InternalIPs, from
// which they answer pods of other nodes. Nodes in different private networks may have the same one,
// so that it is no problem if another node has it.
func (t *tunnelPlanner) assignInternal(sorted []*Node, addrOwners claims[netip.Addr]) {
	for _, n := range sorted {
		if !n.Endpoint.IsValid() {
			continue
		}
		for _, a := range UsableAddrs(n.Addrs) {
			pods := t.podOwners.owner(a)
			if slices.ContainsFunc(t.cfg.Services, func(p netip.Prefix) bool { return p.Contains(a) }) {
				continue
			}
			if (pods == "" || pods == n.Name) && addrOwners.claim(a, n) == nil {
				t.internal[n.Name] = append(t.internal[n.Name], a)
			}
		}
	}
}

// ownAddrs returns a node's addresses as prefixes.
func (t *tunnelPlanner) ownAddrs(name string) (all []netip.Prefix) {
	for _, a := range slices.Concat(t.addrs[name], t.internal[name]) {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	return all
}

// assignForwarded assigns nodes, the oldest first, their endpoints at the addresses that
// administrators set, except another node's. An agent may publish any port: a port that
// administrators set for its node precedes.
func (t *tunnelPlanner) assignForwarded(nodes []*Node) {
	for _, n := range nodes {
		for _, e := range n.endpoints() {
			if e.Port() == n.Port {
				t.forwarded.claim(e, n)
			}
		}
	}
	for _, n := range nodes {
		for _, e := range n.endpoints() {
			switch owner := t.forwarded.claim(e, n); {
			case owner == nil:
			case owner.Port == e.Port() && n.Port != e.Port():
				t.addProblem(n, "its endpoint %s is not used: administrators set its port for node %s", e, owner.Name)
			default:
				t.addProblem(n, "its endpoint %s is not used: it is an endpoint of the older node %s", e, owner.Name)
			}
		}
	}
}

// addPeer adds a node's keys to the plan, if they are valid.
func (t *tunnelPlanner) addPeer(n *Node) {
	pods := t.pods[n.Name]
	for _, why := range pods.problems {
		t.addProblem(n, "%s", why)
	}
	if len(n.PodCIDRs) == 0 {
		t.addProblem(n, "no pod prefixes of it are known: nothing is sent to its pods through the tunnel")
	}
	if n.Agent.Key.IsZero() {
		t.addProblem(n, "it has not published its key yet")
		return
	}
	if owner := t.keys[n.Agent.Key]; owner != n {
		t.addProblem(n, "its key is the key of node %s (a copied disk?): give it another key", owner.Name)
		return
	}
	if t.leadsInto(n) {
		t.plan.Routes = append(t.plan.Routes, pods.accepted...)
	}
	for _, c := range pods.accepted {
		t.setMTU(c, n)
	}
	endpoint, ok := t.endpoint(n)
	if !ok {
		t.addProblem(n, "it has published no endpoint of its own with an IP version that this node has")
	}
	p := Peer{Node: n.Name, Key: n.Agent.Key, Endpoint: endpoint, AllowedIPs: t.allowedIPs(n), Keepalive: t.cfg.Keepalive}
	t.plan.Peers = append(t.plan.Peers, p)
	if next, ok := t.nextKey(n); ok {
		p.Key, p.AllowedIPs, p.Replaces = next, nil, n.Agent.Key
		t.plan.Peers = append(t.plan.Peers, p)
	}
}

// leadsInto reports whether traffic for a peer is to take the tunnel.
func (t *tunnelPlanner) leadsInto(n *Node) bool {
	return !t.cfg.Cleartext || t.cfg.LeadsInto == nil || t.cfg.LeadsInto(n.Name, n.Agent.Key)
}

// nextKey returns a node's next key, if it has one of its own.
func (t *tunnelPlanner) nextKey(n *Node) (key noise.PublicKey, ok bool) {
	next := n.Agent.NextKey
	if next.IsZero() || next == n.Agent.Key {
		return key, false
	}
	if owner := t.keys[next]; owner != n {
		t.addProblem(n, "its next key is the key of node %s", owner.Name)
		return key, false
	}
	return next, true
}

// setMTU records the MTU of a node's prefix.
func (t *tunnelPlanner) setMTU(p netip.Prefix, n *Node) {
	if mtu := n.Agent.MTU; mtu > 0 {
		t.plan.MTU[p] = max(mtu, MinMTU)
	}
}

// allowedIPs returns the valid sources of a node's packets: its pods and its own addresses. A pod's packet to an address of the node
// bypasses the tunnel, but the node's reply takes the route to the pod.
func (t *tunnelPlanner) allowedIPs(n *Node) []netip.Prefix {
	all := slices.Concat(t.pods[n.Name].accepted, t.ownAddrs(n.Name))
	slices.SortFunc(all, comparePrefixes)
	return slices.Compact(all)
}

// endpoint returns the first endpoint of an IP version that this node has.
func (t *tunnelPlanner) endpoint(n *Node) (netip.AddrPort, bool) {
	for _, e := range n.endpoints() {
		sameKind := func(a netip.Addr) bool { return a.Unmap().Is4() == e.Addr().Is4() }
		isOwn := slices.Contains(t.addrs[n.Name], e.Addr())
		if n.Endpoint.IsValid() {
			isOwn = t.forwarded[e] == n
		}
		if isOwn && slices.ContainsFunc(t.own.Addrs, sameKind) {
			return e, true
		}
	}
	return netip.AddrPort{}, false
}

// routeAllPods routes pods of all other nodes into the tunnel, peers or not.
func (t *tunnelPlanner) routeAllPods(self string, nodes []Node) {
	for i := range nodes {
		if n := &nodes[i]; n.Name != self && !n.OptOut {
			t.plan.Routes = append(t.plan.Routes, t.pods[n.Name].accepted...)
		}
	}
	t.plan.Routes = append(t.plan.Routes, t.cfg.Pods...)
}

// listUnrouted lists the pods of other nodes that take part, but for Routes.
func (t *tunnelPlanner) listUnrouted(nodes []Node) {
	routed := make(map[netip.Prefix]bool, len(t.plan.Routes))
	for _, p := range t.plan.Routes {
		routed[p] = true
	}
	for i := range nodes {
		n := &nodes[i]
		if n.Name == t.own.Name || n.OptOut {
			continue
		}
		for _, p := range t.pods[n.Name].accepted {
			if !routed[p] {
				t.plan.Unrouted = append(t.plan.Unrouted, p)
			}
		}
	}
}

// listWithoutTunnel lists the nodes that are no peers, and the other nodes whose pods are unknown.
func (t *tunnelPlanner) listWithoutTunnel(nodes []Node) {
	peers := t.peerNames()
	for i := range nodes {
		n := &nodes[i]
		switch {
		case n.Name == t.own.Name || n.OptOut:
		case !peers[n.Name]:
			t.plan.WithoutTunnel = append(t.plan.WithoutTunnel, n.Name)
		case len(n.PodCIDRs) == 0 && len(t.cfg.Pods) == 0:
			t.plan.UnknownPods = append(t.plan.UnknownPods, n.Name)
		}
	}
	slices.Sort(t.plan.WithoutTunnel)
	slices.Sort(t.plan.UnknownPods)
}

// addExemptions sorts the routes, and finds the parts that bypass the tunnel. It is called when all routes are known.
func (t *tunnelPlanner) addExemptions(nodes []Node) {
	p := &t.plan
	slices.SortFunc(p.Routes, comparePrefixes)
	p.Routes = slices.Compact(p.Routes)
	all := slices.Clone(p.Pods)
	for i := range nodes {
		if nodes[i].OptOut {
			all = append(all, t.pods[nodes[i].Name].accepted...)
		}
		all = append(all, t.ownAddrs(nodes[i].Name)...)
	}
	for _, a := range t.cfg.Bypass {
		all = append(all, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
	}
	slices.SortFunc(all, comparePrefixes)
	all = slices.Compact(all)
	p.Exempt = within(p.Routes, all)
	if p.Beside = p.Exempt; t.cfg.Cleartext { // else the routes contain all pods
		p.Beside = within(slices.Concat(p.Routes, t.cfg.Pods), all)
	}
}

// within returns the prefixes that lie within any route, in their order.
func within(routes, all []netip.Prefix) (within []netip.Prefix) {
	var table bart.Lite
	for _, r := range routes {
		table.Insert(r)
	}
	for _, p := range all {
		if table.LookupPrefix(p) {
			within = append(within, p)
		}
	}
	return within
}
