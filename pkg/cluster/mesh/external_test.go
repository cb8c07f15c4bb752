// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// external returns a selected external peer of the given age, name and allowed IPs. Its key begins with the name's first byte.
func external(age int64, name string, allowed ...string) ExternalPeer {
	return ExternalPeer{Name: name, Created: time.Unix(age, 0), Key: noise.PublicKey{name[0]}, AllowedIPs: prefixesOf(allowed...), Selected: true}
}

// at returns the peer with an endpoint.
func (p ExternalPeer) at(endpoint string) ExternalPeer {
	p.Endpoint = netip.MustParseAddrPort(endpoint)
	return p
}

func TestExternalPeersAreAcceptedOrRefused(t *testing.T) {
	laptop := external(9, "laptop", "10.9.0.2/32", "2001:db8:9::2/128")
	keyed := func(k byte) ExternalPeer {
		p := laptop
		p.Key = noise.PublicKey{k}
		return p
	}
	with := func(allowed ...string) []ExternalPeer { return []ExternalPeer{external(9, "laptop", allowed...)} }
	cluster := TunnelConfig{Pods: prefixesOf("10.244.0.0/16"), Services: prefixesOf("10.96.0.0/12"), OwnKeys: []noise.PublicKey{{77}}}
	for _, c := range []struct {
		name    string
		peers   []ExternalPeer
		has     string // names of the node's external peers
		refused string
	}{
		{"accepted", []ExternalPeer{laptop}, "laptop", ""},
		{"not selected", []ExternalPeer{{Name: "x", Key: noise.PublicKey{9}, AllowedIPs: prefixesOf("10.9.0.1/32")}}, "", ""},
		{"the key of a node", []ExternalPeer{keyed(2)}, "", "laptop: its key is the key of node n2"},
		{"the next key of a node", []ExternalPeer{keyed(33)}, "", "laptop: its key is the key of node n3"},
		{"this node's unpublished key", []ExternalPeer{keyed(77)}, "", "laptop: its key is the key of node n1"},
		{"the pods of a node", with("10.244.2.9/32"), "", "laptop: its allowed IP 10.244.2.9/32 overlaps the pods of node n2"},
		{"around a node's pods", with("10.240.0.0/12"), "", "laptop: its allowed IP 10.240.0.0/12 overlaps the cluster's pods"},
		{"the cluster's pods of no node", with("10.244.9.0/24"), "", "laptop: its allowed IP 10.244.9.0/24 overlaps the cluster's pods"},
		{"around an address of a node", with("192.0.2.0/28"), "", "laptop: its allowed IP 192.0.2.0/28 overlaps an address of node n1"},
		{"Services", with("10.97.0.0/16"), "", "laptop: its allowed IP 10.97.0.0/16 overlaps the cluster's Services"},
		{"one of several", with("10.9.0.2/32", "192.0.2.3/32"), "", "laptop: its allowed IP 192.0.2.3/32 overlaps an address of node n3"},
		{
			"the key of an older peer",
			[]ExternalPeer{external(9, "b", "10.9.0.2/32"), external(8, "beta", "10.9.0.3/32")},
			"beta",
			"b: its key is the key of the older RopewalkPeer beta",
		},
		{
			"the prefix of an older peer",
			[]ExternalPeer{external(9, "b", "10.9.0.2/32"), external(8, "c", "10.9.0.2/32")},
			"c",
			"b: its allowed IP 10.9.0.2/32 is an allowed IP of the older RopewalkPeer c",
		},
		{
			"of the same age, the first name wins",
			[]ExternalPeer{external(9, "c", "10.9.0.2/32"), external(9, "b", "10.9.0.2/32")},
			"b",
			"c: its allowed IP 10.9.0.2/32 is an allowed IP of the older RopewalkPeer b",
		},
		{
			"a refused peer takes nothing",
			[]ExternalPeer{external(1, "a", "10.9.0.2/32", "10.244.2.0/24"), external(9, "b", "10.9.0.2/32")},
			"b",
			"a: its allowed IP 10.244.2.0/24 overlaps the pods of node n2",
		},
		{"a prefix within another peer's", []ExternalPeer{external(8, "site", "10.9.0.0/16"), external(9, "b", "10.9.0.2/32")}, "b site", ""},
		{"an endpoint among pods", []ExternalPeer{laptop.at("10.244.3.1:1")}, "", "laptop: its endpoint 10.244.3.1 lies in the pods of node n3"},
		{"an endpoint in its own allowed IPs", []ExternalPeer{laptop.at("10.9.0.2:1")}, "", "laptop: its endpoint 10.9.0.2 lies in its allowed IPs"},
		{
			"an endpoint in older allowed IPs",
			[]ExternalPeer{external(8, "b", "10.8.0.0/16"), laptop.at("10.8.0.2:1")},
			"b",
			"laptop: its endpoint 10.8.0.2 lies in the allowed IPs of the older RopewalkPeer b",
		},
		{
			"around an older endpoint",
			[]ExternalPeer{external(8, "b", "10.8.0.1/32").at("10.9.0.2:1"), laptop},
			"b",
			"laptop: its allowed IPs contain the endpoint 10.9.0.2 of the older RopewalkPeer b",
		},
		{"no allowed IPs", with(), "", "laptop: invalid: it has no allowed IPs"},
		{"a default route", with("0.0.0.0/0"), "", "laptop: invalid: its allowed IP 0.0.0.0/0 is too large"},
		{"half an IPv6 default route", with("8000::/1"), "", "laptop: invalid: its allowed IP 8000::/1 is too large"},
		{"loopback", with("127.0.0.1/32"), "", "laptop: invalid: its allowed IP 127.0.0.1/32 is no global unicast prefix"},
		{"link-local, as a cloud's metadata", with("169.254.0.0/16"), "", "laptop: invalid: its allowed IP 169.254.0.0/16 is no global unicast prefix"},
		{"host bits", with("10.9.0.2/24"), "", "laptop: invalid: its allowed IP 10.9.0.2/24 has bits after the prefix length"},
		{"IPv4 as IPv6", with("::ffff:10.9.0.2/128"), "", "laptop: invalid: its allowed IP ::ffff:10.9.0.2/128 is an IPv4 prefix in IPv6 form"},
		{"a definition that did not parse", []ExternalPeer{{Name: "x", Invalid: "no key"}}, "", "x: invalid: no key"},
	} {
		cfg := cluster
		cfg.External = c.peers
		plan, err := Tunnel("n1", []Node{node(1), node(2), node(3, func(n *Node) { n.Agent.NextKey = noise.PublicKey{33} })}, cfg)
		if err != nil {
			t.Fatal(err)
		}
		var has []string
		for _, p := range plan.Peers {
			if !p.IsExternal() {
				continue
			}
			has = append(has, p.External)
			for _, a := range p.AllowedIPs {
				if !slices.Contains(plan.Routes, a) || slices.Contains(plan.Exempt, a) {
					t.Errorf("%s: %s has no route into the tunnel", c.name, a)
				}
			}
		}
		slices.Sort(has)
		if got := strings.Join(has, " "); got != c.has || len(plan.Peers)-len(has) != 3 || len(plan.Problems) > 0 || len(plan.Notes) > 0 {
			t.Errorf("%s: got peers %q, want %q; plan %+v", c.name, got, c.has, plan)
		}
		var refused []string
		for _, r := range plan.Refused {
			text := r.Reason
			if r.Invalid {
				text = "invalid: " + text
			}
			refused = append(refused, r.Peer+": "+text)
		}
		if got := strings.Join(refused, "; "); got != c.refused {
			t.Errorf("%s: got refusals %q, want %q", c.name, got, c.refused)
		}
	}
}

func TestNodeWithClaimedPrefixKeepsIt(t *testing.T) {
	cfg := TunnelConfig{External: []ExternalPeer{external(0, "older", "10.244.2.0/24")}}
	plan, err := Tunnel("n1", []Node{node(1), node(2)}, cfg)
	if diff := cmp.Diff([]Peer{planned(2, "10.244.2.0/24")}, plan.Peers, equal); err != nil || diff != "" || len(plan.Refused) != 1 {
		t.Errorf("-want +got\n%s%v %v", diff, plan.Refused, err)
	}
}

// TestResolvedAddressDecidesForOneNodeOnly: nodes that have not resolved the name must not disagree about the peer.
func TestResolvedAddressDecidesForOneNodeOnly(t *testing.T) {
	other := external(2, "b", "10.8.0.0/16")
	for at, conflict := range map[string]string{
		"198.51.100.7:1": "", "10.244.2.9:1": "lies in the pods of node n2", "10.9.0.2:1": "lies in the allowed IPs of the RopewalkPeer laptop",
		"10.8.0.9:1": "lies in the allowed IPs of the RopewalkPeer b",
	} {
		p := external(1, "laptop", "10.9.0.2/32").at(at)
		p.EndpointName = "vpn.example.org:1"
		plan, err := Tunnel("n1", []Node{node(1), node(2)}, TunnelConfig{External: []ExternalPeer{p, other}})
		has := slices.ContainsFunc(plan.Peers, func(p Peer) bool { return p.External == "laptop" })
		notes := strings.Join(plan.Notes, ";")
		if err != nil || len(plan.Refused) > 0 || has != (conflict == "") || !strings.Contains(notes, conflict) || (notes == "") != has {
			t.Errorf("%s: has the peer: %v, refused %v, notes %q, %v", at, has, plan.Refused, notes, err)
		}
		if inside := len(plan.Inside) == 1 && plan.Inside[0].Name == "laptop"; inside == has {
			t.Errorf("%s: peers to resolve again: %+v", at, plan.Inside)
		}
		if !slices.Contains(plan.Routes, p.AllowedIPs[0]) {
			t.Errorf("%s: packets for the peer leave unencrypted", at)
		}
	}
}

// TestRefusedPeerKeepsPrefixesItHad: a node that claims a peer's key must not make packets for the peer leave unencrypted.
func TestRefusedPeerKeepsPrefixesItHad(t *testing.T) {
	p := external(1, "laptop", "10.9.0.2/32", "10.8.0.0/16")
	thief := node(2, func(n *Node) { n.Agent.NextKey = p.Key })
	first, err := Tunnel("n1", []Node{node(1), node(2)}, TunnelConfig{External: []ExternalPeer{p}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		edit func(*TunnelConfig)
		want string // of the peer's prefixes
	}{
		{"it had them", func(*TunnelConfig) {}, "10.8.0.0/16 10.9.0.2/32"},
		{"it never had them", func(c *TunnelConfig) { c.AcceptedPrefixes = nil }, ""},
		{"cleartext is allowed", func(c *TunnelConfig) { c.Cleartext = true }, ""},
		{"pods are there now", func(c *TunnelConfig) { c.Pods = prefixesOf("10.9.0.0/24", "10.244.0.0/16") }, "10.8.0.0/16"},
		{"Services are there now", func(c *TunnelConfig) { c.Services = prefixesOf("10.8.96.0/20") }, "10.9.0.2/32"},
		{"one was removed", func(c *TunnelConfig) { c.External[0].AllowedIPs = prefixesOf("10.9.0.2/32") }, "10.9.0.2/32"},
		{"the node is not selected any more", func(c *TunnelConfig) { c.External[0].Selected = false }, ""},
		{"it was deleted", func(c *TunnelConfig) { c.External = nil }, ""},
		{"it is unknown yet", func(c *TunnelConfig) { c.External = HeldPeersOf(first.AcceptedPrefixes, nil) }, "10.8.0.0/16 10.9.0.2/32"},
	} {
		cfg := TunnelConfig{External: []ExternalPeer{p}, AcceptedPrefixes: first.AcceptedPrefixes}
		c.edit(&cfg)
		var got []string
		for range 2 { // also of the next plan
			plan, err := Tunnel("n1", []Node{node(1), thief}, cfg)
			if err != nil || slices.ContainsFunc(plan.Peers, func(p Peer) bool { return p.IsExternal() }) {
				t.Fatalf("%s: peers %v, %v", c.name, plan.Peers, err)
			}
			got, cfg.AcceptedPrefixes = nil, plan.AcceptedPrefixes
			for _, r := range plan.Routes {
				if slices.Contains(p.AllowedIPs, r) {
					got = append(got, r.String())
				}
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: routes %v into the tunnel, want %s", c.name, got, c.want)
		}
	}
}

func TestExternalPeersOfPlanGiveThatPlan(t *testing.T) {
	peers := []ExternalPeer{external(1, "laptop", "10.9.0.2/32").at("198.51.100.7:1"), external(2, "west", "10.8.0.0/16")}
	peers[0].Keepalive, peers[0].EndpointName, peers[0].PostQuantum = 25, "vpn.example.org:1", config.PostQuantumRequired
	nodes := []Node{node(1), node(2)}
	first, err := Tunnel("n1", nodes, TunnelConfig{External: peers})
	if err != nil {
		t.Fatal(err)
	}
	again, err := Tunnel("n1", nodes, TunnelConfig{External: ExternalPeersOf(first.Peers)})
	if diff := cmp.Diff(first, again, equal); err != nil || diff != "" {
		t.Errorf("-first +again\n%s%v", diff, err)
	}
	if held := HeldPeersOf(first.AcceptedPrefixes, first.Peers); len(held) > 0 {
		t.Errorf("held peers %v", held)
	}
	if owners := KeyOwnersOf(first.Peers); len(owners) != 1 {
		t.Errorf("an external peer owns a key of nodes: %v", owners)
	}
}

func TestDiffConfiguresExternalPeers(t *testing.T) {
	named := func() Peer {
		p := external(1, "laptop", "10.9.0.2/32").at("198.51.100.7:1")
		p.Keepalive, p.EndpointName = 25, "vpn.example.org:1"
		return p.peer()
	}
	key := named().Key
	configured := config.PeerStatus{
		PublicKey: key, Name: "laptop", Keepalive: 25, AllowedIPs: prefixesOf("10.9.0.2/32"), EndpointName: "vpn.example.org:1",
		Endpoint: config.Endpoint{AddrPort: netip.MustParseAddrPort("203.0.113.9:9")}, // roamed, or resolved again by the device
	}
	sent := SentEndpoints{key: netip.MustParseAddrPort("198.51.100.7:1")}
	strict := configured
	strict.PostQuantum = config.PeerPostQuantum{Policy: config.PostQuantumRequired, Own: true}
	inherited := configured
	inherited.PostQuantum = config.PeerPostQuantum{Policy: config.PostQuantumRequired}
	required, never, asMesh := config.PostQuantumRequired, config.PostQuantumOff, config.PostQuantumDefault
	name, keepalive, off := "laptop", uint16(25), uint16(0)
	resolved := &config.Endpoint{AddrPort: netip.MustParseAddrPort("198.51.100.7:1")}
	for _, c := range []struct {
		name string
		edit func(*Peer)
		have []config.PeerStatus
		want []config.Peer
	}{
		{"a new peer", func(*Peer) {}, nil, []config.Peer{{
			PublicKey: key, Name: &name, Keepalive: &keepalive, Endpoint: resolved, EndpointName: "vpn.example.org:1", ReplaceAllowedIPs: true,
			AllowedIPs: []config.AllowedIP{{Prefix: netip.MustParsePrefix("10.9.0.2/32")}},
		}}},
		{"no change", func(*Peer) {}, []config.PeerStatus{configured}, nil},
		{"keepalive ends", func(p *Peer) { p.Keepalive = 0 }, []config.PeerStatus{configured}, []config.Peer{{PublicKey: key, UpdateOnly: true, Keepalive: &off}}},
		{"keys are required", func(p *Peer) { p.PostQuantum = required }, []config.PeerStatus{configured}, []config.Peer{{PublicKey: key, UpdateOnly: true, PostQuantum: &required}}},
		{"and they are", func(p *Peer) { p.PostQuantum = required }, []config.PeerStatus{strict}, nil},
		{"the mesh requires them, the peer has none", func(p *Peer) { p.PostQuantum = never }, []config.PeerStatus{inherited}, []config.Peer{{PublicKey: key, UpdateOnly: true, PostQuantum: &never}}},
		{"as the mesh again", func(*Peer) {}, []config.PeerStatus{strict}, []config.Peer{{PublicKey: key, UpdateOnly: true, PostQuantum: &asMesh}}},
		{"as the mesh", func(*Peer) {}, []config.PeerStatus{inherited}, nil},
		{
			"another host name with the same address", func(p *Peer) { p.EndpointName = "new.example.org:1" },
			[]config.PeerStatus{configured},
			[]config.Peer{{PublicKey: key, UpdateOnly: true, Endpoint: resolved, EndpointName: "new.example.org:1"}},
		},
		{
			"the endpoint is removed: the present one stays, without its name", func(p *Peer) { p.EndpointName, p.Endpoint = "", netip.AddrPort{} },
			[]config.PeerStatus{configured},
			[]config.Peer{{PublicKey: key, UpdateOnly: true, Endpoint: &configured.Endpoint}},
		},
		{
			"a node's keepalive is removed", func(p *Peer) { p.External, p.Node, p.Keepalive, p.EndpointName = "", "n2", 0, "" },
			[]config.PeerStatus{configured},
			[]config.Peer{{PublicKey: key, UpdateOnly: true, Keepalive: new(uint16)}},
		},
	} {
		p := named()
		c.edit(&p)
		if diff := cmp.Diff(c.want, Diff([]Peer{p}, c.have, sent), equal); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.name, diff)
		}
	}
}

func TestRankCountsOlderNodesInModeMesh(t *testing.T) {
	nodes := []Node{node(4), node(3), node(2, spreads), node(1), node(5, func(n *Node) { n.OptOut = true })}
	for i, want := range map[byte]int{1: 0, 3: 1, 4: 2} {
		self := node(i)
		if got := Rank(&self, nodes); got != want {
			t.Errorf("n%d: rank %d, want %d", i, got, want)
		}
	}
}
