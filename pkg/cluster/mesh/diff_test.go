// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// apply applies changes as a device does: an allowed IP belongs to the peer that got it last.
func apply(have []config.PeerStatus, changes []config.Peer) []config.PeerStatus {
	have = slices.Clone(have)
	index := make(map[noise.PublicKey]int, len(have))
	owner := make(map[netip.Prefix]int)
	for i := range have {
		have[i].AllowedIPs = slices.Clone(have[i].AllowedIPs)
		index[have[i].PublicKey] = i
		for _, a := range have[i].AllowedIPs {
			owner[a] = i
		}
	}
	gone := map[noise.PublicKey]bool{}
	for _, c := range changes {
		i, there := index[c.PublicKey]
		switch {
		case c.Remove:
			gone[c.PublicKey] = true
			continue
		case !there && c.UpdateOnly:
			continue
		case !there:
			i = len(have)
			index[c.PublicKey] = i
			have = append(have, config.PeerStatus{PublicKey: c.PublicKey})
		}
		if c.Endpoint != nil {
			have[i].Endpoint = *c.Endpoint
		}
		if c.ReplaceAllowedIPs {
			have[i].AllowedIPs = nil
		}
		for _, a := range c.AllowedIPs {
			ownerIndex, isOwned := owner[a.Prefix]
			if isOwned && (ownerIndex == i || !a.Remove) {
				have[ownerIndex].AllowedIPs = slices.DeleteFunc(have[ownerIndex].AllowedIPs, func(p netip.Prefix) bool { return p == a.Prefix })
				delete(owner, a.Prefix)
			}
			if !a.Remove {
				have[i].AllowedIPs = append(have[i].AllowedIPs, a.Prefix)
				owner[a.Prefix] = i
			}
		}
	}
	return slices.DeleteFunc(have, func(p config.PeerStatus) bool { return gone[p.PublicKey] })
}

func TestDiffContainsOnlyChanges(t *testing.T) {
	roamed := netip.MustParseAddrPort("203.0.113.77:4242")
	rebooted := peer(2, "10.244.2.0/24")
	rebooted.Key = noise.PublicKey{22}
	for _, c := range []struct {
		name     string
		want     []Peer
		edit     func(have []config.PeerStatus, sent SentEndpoints) []config.PeerStatus
		changes  int
		allowed  map[byte][]string // allowed IPs after the changes, by the first byte of the key
		endpoint netip.AddrPort    // of the first peer, after the changes
	}{
		{
			name: "no change", want: []Peer{peer(2, "10.244.2.0/24"), peer(3, "10.244.3.0/24")},
			allowed: map[byte][]string{2: {"10.244.2.0/24"}, 3: {"10.244.3.0/24"}}, endpoint: peer(2).Endpoint,
		},
		{
			name: "roamed endpoints are kept (kilo #34)", want: []Peer{peer(2, "10.244.2.0/24"), peer(3, "10.244.3.0/24")},
			edit: func(have []config.PeerStatus, _ SentEndpoints) []config.PeerStatus {
				have[0].Endpoint.AddrPort = roamed
				return have
			},
			allowed: map[byte][]string{2: {"10.244.2.0/24"}, 3: {"10.244.3.0/24"}}, endpoint: roamed,
		},
		{
			name: "after a restart without sent endpoints", want: []Peer{peer(2, "10.244.2.0/24"), peer(3, "10.244.3.0/24")},
			edit: func(have []config.PeerStatus, sent SentEndpoints) []config.PeerStatus {
				have[0].Endpoint.AddrPort = roamed
				clear(sent)
				return have
			},
			allowed: map[byte][]string{2: {"10.244.2.0/24"}, 3: {"10.244.3.0/24"}}, endpoint: roamed,
		},
		{
			name: "a node has moved", want: []Peer{peer(2, "10.244.2.0/24"), peer(3, "10.244.3.0/24")},
			edit: func(have []config.PeerStatus, sent SentEndpoints) []config.PeerStatus {
				have[0].Endpoint.AddrPort = roamed
				sent[noise.PublicKey{2}] = netip.MustParseAddrPort("192.0.2.200:1")
				return have
			},
			changes: 1, allowed: map[byte][]string{2: {"10.244.2.0/24"}, 3: {"10.244.3.0/24"}}, endpoint: peer(2).Endpoint,
		},
		{
			name: "a key change with a reboot (cilium #25492, #35644)",
			want: []Peer{peer(3, "10.244.3.0/24"), rebooted}, changes: 2,
			allowed: map[byte][]string{3: {"10.244.3.0/24"}, 22: {"10.244.2.0/24"}}, endpoint: peer(3).Endpoint,
		},
		{
			name: "lost allowed IPs are added again (cilium #35644)",
			want: []Peer{peer(2, "10.244.2.0/24", "2001:db8:2::/64"), peer(3, "10.244.3.0/24")},
			edit: func(have []config.PeerStatus, _ SentEndpoints) []config.PeerStatus {
				have[1].AllowedIPs = nil
				return have
			},
			changes: 2, allowed: map[byte][]string{2: {"10.244.2.0/24", "2001:db8:2::/64"}, 3: {"10.244.3.0/24"}}, endpoint: peer(2).Endpoint,
		},
		{
			name: "one peer lost its pods, one left", want: []Peer{peer(2)}, changes: 2,
			allowed: map[byte][]string{2: nil}, endpoint: peer(2).Endpoint,
		},
		{
			name: "a prefix moves between nodes", want: []Peer{peer(2, "10.244.3.0/24"), peer(3, "10.244.2.0/24")}, changes: 4,
			allowed: map[byte][]string{2: {"10.244.3.0/24"}, 3: {"10.244.2.0/24"}}, endpoint: peer(2).Endpoint,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			sent := SentEndpoints{}
			first := Diff([]Peer{peer(2, "10.244.2.0/24"), peer(3, "10.244.3.0/24")}, nil, sent)
			sent.Record(first)
			have := apply(nil, first)
			if c.edit != nil {
				have = c.edit(have, sent)
			}
			changes := Diff(c.want, have, sent)
			if len(changes) != c.changes {
				t.Errorf("%d changes: got %+v, want length %d", len(changes), changes, c.changes)
			}
			sent.Record(changes)
			have = apply(have, changes)
			got := map[byte][]string{}
			for _, p := range have {
				got[p.PublicKey[0]] = nil
				for _, a := range p.AllowedIPs {
					got[p.PublicKey[0]] = append(got[p.PublicKey[0]], a.String())
				}
				slices.Sort(got[p.PublicKey[0]])
			}
			if diff := cmp.Diff(c.allowed, got, cmpopts.EquateEmpty()); diff != "" {
				t.Error("-want +got\n" + diff)
			}
			if have[0].Endpoint.AddrPort != c.endpoint {
				t.Errorf("the endpoint is %s, want %s", have[0].Endpoint.AddrPort, c.endpoint)
			}
			if again := Diff(c.want, have, sent); len(again) > 0 {
				t.Errorf("it does not end: %+v", again)
			}
		})
	}
}

// A device that an agent took over has peers that this agent never configured.
func TestNodeThatMovesAfterTakeoverIsFollowed(t *testing.T) {
	before, after := peer(2, "10.244.2.0/24"), peer(2, "10.244.2.0/24")
	after.Endpoint = netip.MustParseAddrPort("192.0.2.200:51820")
	roamed := netip.MustParseAddrPort("203.0.113.77:4242")
	sent := SentEndpoints{}
	have := apply(nil, Diff([]Peer{before}, nil, SentEndpoints{})) // by the earlier agent
	have[0].Endpoint.AddrPort = roamed
	for _, c := range []struct {
		plan Peer
		want netip.AddrPort
	}{{before, roamed}, {before, roamed}, {after, after.Endpoint}, {after, after.Endpoint}} {
		changes := Diff([]Peer{c.plan}, have, sent)
		sent.Record(changes)
		sent.Assume([]Peer{c.plan})
		if have = apply(have, changes); have[0].Endpoint.AddrPort != c.want {
			t.Errorf("plan with endpoint %s: the device has %s, want %s", c.plan.Endpoint, have[0].Endpoint.AddrPort, c.want)
		}
	}
}

// TestRepeatedDiffsConverge covers cilium #20925: after any sequence of plans, the device has exactly the last one.
func TestRepeatedDiffsConverge(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	var have []config.PeerStatus
	sent := SentEndpoints{}
	for round := range 300 {
		var nodes []Node
		for i := range 12 {
			if i == 0 || r.IntN(3) > 0 {
				nodes = append(nodes, node(byte(i), func(n *Node) { n.Agent.Key[1] = byte(r.IntN(2)) }))
			}
		}
		plan, err := Tunnel("n0", nodes, TunnelConfig{})
		if err != nil {
			t.Fatal(err)
		}
		changes := Diff(plan.Peers, have, sent)
		sent.Record(changes)
		have = apply(have, changes)
		if again := Diff(plan.Peers, have, sent); len(again) > 0 {
			t.Fatalf("round %d: %+v are left", round, again)
		}
		if len(have) != len(plan.Peers) {
			t.Fatalf("round %d: got %d peers, want %d", round, len(have), len(plan.Peers))
		}
	}
}

// TestAdditionsKeepRoamedEndpoints: a device that gets another key loses its peers, and would send to addresses that peers have left.
func TestAdditionsKeepRoamedEndpoints(t *testing.T) {
	roamed := netip.MustParseAddrPort("198.51.100.9:7")
	w := peer(3, "10.244.3.0/24")
	have := []config.PeerStatus{{PublicKey: w.Key, Endpoint: config.Endpoint{AddrPort: roamed}}}
	for _, c := range []struct {
		what string
		have []config.PeerStatus
		sent SentEndpoints
		want netip.AddrPort
	}{
		{"a new device", nil, nil, w.Endpoint},
		{"a peer that roamed", have, SentEndpoints{w.Key: w.Endpoint}, roamed},
		{"a device of an earlier agent", have, nil, roamed},
		{"a node that moved", have, SentEndpoints{w.Key: roamed}, w.Endpoint},
	} {
		got := Additions([]Peer{w}, c.have, c.sent)
		if len(got) != 1 || got[0].UpdateOnly || got[0].Endpoint.AddrPort != c.want || len(got[0].AllowedIPs) != 1 {
			t.Errorf("%s: got %+v, want the endpoint %s", c.what, got, c.want)
		}
	}
}
