// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

func TestRotationWaitsForPropagation(t *testing.T) {
	for _, c := range []struct {
		name string
		r    Rotation
		want RotationStep
	}{
		{"no request", Rotation{Current: 1}, RotationIdle},
		{"the requested generation is current", Rotation{Requested: 3, Current: 3}, RotationIdle},
		{"the request was taken back", Rotation{Requested: 2, Current: 3}, RotationIdle},
		{"a new generation is requested", Rotation{Requested: 2, Current: 1}, RotationGenerate},
		{"next key generated", Rotation{Requested: 2, Current: 1, Next: 2, Announced: -1}, RotationAnnounce},
		{"a started change continues without the request", Rotation{Current: 1, Next: 2, Announced: -1}, RotationAnnounce},
		{"just announced", Rotation{Requested: 2, Current: 1, Next: 2}, RotationWait},
		{"announced for almost long enough", Rotation{Current: 1, Next: 2, Announced: 10*time.Second - 1}, RotationWait},
		{"announced for long enough", Rotation{Current: 1, Next: 2, Announced: 10 * time.Second}, RotationSwitch},
		{"a second request during a change", Rotation{Requested: 3, Current: 1, Next: 2, Announced: time.Minute}, RotationSwitch},
		{"the second request after the change", Rotation{Requested: 3, Current: 2}, RotationGenerate},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.r.Step(10 * time.Second); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestInterruptedRotationCompletes restarts a node at each step. It keeps only its files and the cluster's objects.
func TestInterruptedRotationCompletes(t *testing.T) {
	for crash := range 8 {
		r, announced := Rotation{Requested: 2, Current: 1, Announced: -1}, false
		for step := range 20 {
			if step == crash && announced {
				r.Announced = 0
			}
			switch r.Step(time.Second) {
			case RotationIdle:
				if r.Current != 2 {
					t.Fatalf("interrupted at %d: it rests at %+v", crash, r)
				}
			case RotationGenerate:
				r.Next = r.Requested
			case RotationAnnounce:
				r.Announced, announced = 0, true
			case RotationWait:
				r.Announced += time.Second / 2
			case RotationSwitch:
				r.Current, r.Next, r.Announced, announced = r.Next, 0, -1, false
			}
		}
		if r.Current != 2 || r.Next != 0 {
			t.Errorf("interrupted at %d: got %+v, want Current 2, Next 0", crash, r)
		}
	}
}

// at returns the status of a peer with a handshake at that second; 0: never.
func at(key byte, second int64, allowed ...string) config.PeerStatus {
	st := config.PeerStatus{PublicKey: noise.PublicKey{key}, AllowedIPs: prefixesOf(allowed...)}
	if second != 0 {
		st.LastHandshake = time.Unix(second, 0)
	}
	return st
}

func TestAllowedIPsFollowLatestHandshake(t *testing.T) {
	const pods, others = "10.244.3.0/24", "10.244.2.0/24"
	next := Peer{Node: "n3", Key: noise.PublicKey{9}, Endpoint: peer(3).Endpoint, Replaces: noise.PublicKey{3}}
	for _, c := range []struct {
		name  string
		plan  []Peer
		have  []config.PeerStatus
		owner byte
		moves int
	}{
		{"no key changes", []Peer{peer(2, others), peer(3, pods)}, []config.PeerStatus{at(2, 5, others), at(3, 0, pods)}, 3, 0},
		{"no handshake of either key", []Peer{peer(3, pods), next}, []config.PeerStatus{at(3, 0, pods), at(9, 0)}, 3, 0},
		{"handshake of the old key only", []Peer{peer(3, pods), next}, []config.PeerStatus{at(3, 5, pods), at(9, 0)}, 3, 0},
		{"later handshake of the new key", []Peer{peer(3, pods), next}, []config.PeerStatus{at(3, 5, pods), at(9, 6)}, 9, 2},
		{"handshake of the new key only", []Peer{peer(3, pods), next}, []config.PeerStatus{at(3, 0, pods), at(9, 6)}, 9, 2},
		{"allowed IPs already moved", []Peer{peer(3, pods), next}, []config.PeerStatus{at(3, 5), at(9, 6, pods)}, 9, 0},
		{"node restored from a backup", []Peer{peer(3, pods), next}, []config.PeerStatus{at(3, 7), at(9, 6, pods)}, 3, 2},
		{"other peers are unaffected", []Peer{peer(2, others), peer(3, pods), next}, []config.PeerStatus{at(2, 0), at(3, 5, pods), at(9, 6)}, 9, 2},
		{"the device does not have the new key yet", []Peer{peer(3, pods), next}, []config.PeerStatus{at(3, 5, pods)}, 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := slices.Clone(c.plan)
			var owners []byte
			for _, p := range AssignByHandshake(c.plan, c.have) {
				if slices.Contains(p.AllowedIPs, prefixesOf(pods)[0]) {
					owners = append(owners, p.Key[0])
				}
			}
			if !slices.Equal(owners, []byte{c.owner}) {
				t.Errorf("they are those of %v, want %d", owners, c.owner)
			}
			if diff := cmp.Diff(before, c.plan, equal); diff != "" {
				t.Error("the plan itself was changed: " + diff)
			}
			moves := AllowedIPMoves(c.plan, c.have)
			if len(moves) != c.moves {
				t.Errorf("%d moves: got %+v, want length %d", len(moves), moves, c.moves)
			}
			for _, p := range apply(c.have, moves) {
				if slices.Contains(p.AllowedIPs, prefixesOf(pods)[0]) && p.PublicKey[0] != c.owner {
					t.Errorf("the device has them at %d", p.PublicKey[0])
				}
			}
			if c.moves == 0 {
				return
			}
			if changes := Diff(AssignByHandshake(c.plan, c.have), apply(c.have, moves), SentEndpoints{
				{2}: peer(2).Endpoint, {3}: peer(3).Endpoint, {9}: next.Endpoint,
			}); len(changes) > 0 && len(c.plan) == 2 {
				t.Errorf("the next reconcile changes it: %+v", changes)
			}
		})
	}
}

func BenchmarkAssignByHandshakeOf5000Nodes(b *testing.B) {
	nodes := cluster(5000, ModeMesh)
	for i := range nodes {
		nodes[i].Agent.NextKey = nodes[i].Agent.Key
		nodes[i].Agent.NextKey[2] = 2
	}
	plan, err := Tunnel("node-0", nodes, TunnelConfig{})
	if err != nil {
		b.Fatal(err)
	}
	have := apply(nil, Diff(plan.Peers, nil, nil))
	for b.Loop() {
		if m := AllowedIPMoves(plan.Peers, have); len(m) > 0 || len(plan.Peers) != 9998 {
			b.Fatal(len(m), len(plan.Peers))
		}
	}
}

func TestReplacementOfUnknownKeyMovesNoAllowedIPs(t *testing.T) {
	peers := []Peer{
		{Node: "a", Key: noise.PublicKey{1}, AllowedIPs: prefixesOf("10.244.1.0/24")},
		{Node: "b", Key: noise.PublicKey{3}, Replaces: noise.PublicKey{9}}, // not a peer: a saved file may hold anything
	}
	if got := AssignByHandshake(peers, []config.PeerStatus{at(3, 5)}); len(got[0].AllowedIPs) != 1 || len(got[1].AllowedIPs) != 0 {
		t.Errorf("got %+v", got)
	}
}
