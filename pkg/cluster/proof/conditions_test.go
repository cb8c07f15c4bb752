// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"testing"
	"time"
)

func TestConditionsReportOnlyProvenFacts(t *testing.T) {
	now := began
	proven := Summary{Peers: 20, Proven: 20, Judged: 20, Mutual: 20}
	good := func(change func(*Facts)) Facts {
		f := Facts{Peers: proven, Guard: GuardFacts{Tunneled: now}, Strictness: Latched}
		change(&f)
		return f
	}
	beside := func(ago time.Duration) Packet { return Packet{now.Add(-ago), "eth0", "10.244.1.5"} }
	for _, tt := range []struct {
		name                             string
		f                                Facts
		tunnel, reachable, encrypts, is  Status
		reachableReason, encryptedReason string
	}{
		{"all is seen", good(func(*Facts) {}), True, True, True, True, "PeersAnswer", "SeenInTunnel"},
		{"engine absent", good(func(f *Facts) { f.Tunnel = EngineAbsent }), False, Unknown, Unknown, True, "TunnelDown", "TunnelDown"},
		{"no peers", good(func(f *Facts) { f.Peers = Summary{} }), True, Unknown, Unknown, True, "NoPeers", "NoPeers"},
		{"not asked", good(func(f *Facts) { f.Peers = Summary{Peers: 3, Pending: 3} }), True, Unknown, Unknown, True, "NotAsked", "NoPeers"},
		{"one in ten lost", good(func(f *Facts) { f.Peers = Summary{Peers: 20, Proven: 18, Lost: 2, Judged: 20, JudgedLost: 2} }), True, True, True, True, "PeersAnswer", "SeenInTunnel"},
		{"more lost", good(func(f *Facts) { f.Peers = Summary{Peers: 20, Proven: 17, Lost: 3, Judged: 20, JudgedLost: 3} }), True, False, True, True, "PeersLost", "SeenInTunnel"},
		{"all lost", good(func(f *Facts) { f.Peers = Summary{Peers: 2, Lost: 2, Judged: 2, JudgedLost: 2} }), True, False, Unknown, True, "PeersLost", "NoPeers"},
		{"being proved", good(func(f *Facts) { f.Peers.Proven, f.Peers.Reachable = 19, 1 }), True, True, Unknown, True, "PeersAnswer", "Proving"},
		{"no route", good(func(f *Facts) { f.Peers.Proven, f.Peers.Reachable, f.Peers.Unproven = 19, 1, 1 }), True, True, False, True, "PeersAnswer", "RoutesUnproven"},
		{"peers without address", good(func(f *Facts) { f.Peers = Summary{Peers: 2, Reachable: 2, Unprovable: 2, Judged: 2} }), True, True, True, True, "PeersAnswer", "SeenInTunnel"},
		{"no traffic", good(func(f *Facts) { f.Guard.Tunneled = time.Time{} }), True, True, Unknown, True, "PeersAnswer", "NoTraffic"},
		{"guard missing", good(func(f *Facts) { f.Guard.Fault = "no BPF" }), True, True, Unknown, Unknown, "PeersAnswer", "GuardMissing"},
		{"guard behind", good(func(f *Facts) { f.Guard.Behind = []string{"cil_to_netdev"} }), True, True, Unknown, Unknown, "PeersAnswer", "GuardNotInFront"},
		{"guard missing, permissive", good(func(f *Facts) { f.Guard.Fault, f.Strictness = "no BPF", Permissive }), True, True, Unknown, False, "PeersAnswer", "GuardMissing"},
		{"packet beside", good(func(f *Facts) { f.Guard.Beside = beside(time.Minute) }), True, True, False, True, "PeersAnswer", "BesideTunnel"},
		{"packet beside, engine absent", good(func(f *Facts) { f.Guard.Beside, f.Tunnel = beside(time.Minute), EngineAbsent }), False, Unknown, False, True, "TunnelDown", "BesideTunnel"},
		{"packet in the clear", good(func(f *Facts) { f.Guard.Clear, f.Strictness = beside(20*time.Second), Permissive }), True, True, False, False, "PeersAnswer", "NoTunnel"},
		{"packet in the clear before", good(func(f *Facts) { f.Guard.Clear, f.Strictness = beside(time.Minute), Permissive }), True, True, True, False, "PeersAnswer", "SeenInTunnel"},
		{"packet dropped", good(func(f *Facts) { f.Guard.Clear = beside(20 * time.Second) }), True, True, True, True, "PeersAnswer", "SeenInTunnel"},
		{"unrouted peer", good(func(f *Facts) { f.Peers.Unrouted, f.Strictness = 1, Permissive }), True, True, Unknown, False, "PeersAnswer", "NotRouted"},
		{"packet beside long ago", good(func(f *Facts) { f.Guard.Beside = beside(time.Hour) }), True, True, True, True, "PeersAnswer", "SeenInTunnel"},
		{"none in the tunnel since", good(func(f *Facts) { f.Guard.Beside, f.Guard.Tunneled = beside(time.Hour), now.Add(-2*time.Hour) }), True, True, Unknown, True, "PeersAnswer", "NoTraffic"},
		{"nothing applied", good(func(f *Facts) { f.Tunnel, f.Strictness = EngineAbsent, NotApplied }), False, Unknown, Unknown, Unknown, "TunnelDown", "TunnelDown"},
		{"permissive", good(func(f *Facts) { f.Strictness = Permissive }), True, True, True, False, "PeersAnswer", "SeenInTunnel"},
		{"never", good(func(f *Facts) { f.Strictness = Never }), True, True, True, True, "PeersAnswer", "SeenInTunnel"},
	} {
		got := ConditionsOf(now, &tt.f)
		if len(got) != 5 {
			t.Errorf("%s: got %d conditions, want 5", tt.name, len(got))
		}
		for i, want := range []Status{tt.tunnel, tt.reachable, tt.encrypts, tt.is} {
			if got[i].Status != want || got[i].Reason == "" {
				t.Errorf("%s: got %+v, want %s", tt.name, got[i], want)
			}
		}
		if tt.is == Unknown && tt.f.Strictness != NotApplied && got[3].Reason != tt.encryptedReason {
			t.Errorf("%s: got %+v, want the reason %s", tt.name, got[3], tt.encryptedReason)
		}
		if got[1].Reason != tt.reachableReason || got[2].Reason != tt.encryptedReason {
			t.Errorf("%s: got the reasons %s and %s, want %s and %s", tt.name, got[1].Reason, got[2].Reason, tt.reachableReason, tt.encryptedReason)
		}
	}
}

func TestLatchIsReadyOnMutualProofOnly(t *testing.T) {
	good := Facts{Peers: Summary{Peers: 2, Proven: 2, Judged: 2, Mutual: 2}, Guard: GuardFacts{Tunneled: began}, Strictness: Permissive}
	for _, tt := range []struct {
		name   string
		change func(*Facts)
		all    bool
		want   bool
	}{
		{"all proved", func(*Facts) {}, true, true},
		{"a node without tunnel", func(*Facts) {}, false, false},
		{"one direction", func(f *Facts) { f.Peers.Mutual = 1 }, true, false},
		{"no peers", func(f *Facts) { f.Peers = Summary{} }, true, false},
		{"no traffic seen", func(f *Facts) { f.Guard.Tunneled = time.Time{} }, true, false},
		{"a packet in the clear", func(f *Facts) { f.Guard.Clear = Packet{Time: began} }, true, false},
		{"a peer that is not routed", func(f *Facts) { f.Peers.Unrouted = 1 }, true, false},
		{"a packet beside", func(f *Facts) { f.Guard.Beside = Packet{Time: began} }, true, false},
	} {
		f, l := good, Latch{}
		tt.change(&f)
		for i := range 20 {
			if l.Ready(began.Add(time.Duration(i)*time.Second), &f, tt.all) && i < 10 {
				t.Errorf("%s: ready after %d s", tt.name, i)
			}
		}
		if got := l.Ready(began.Add(20*time.Second), &f, tt.all); got != tt.want {
			t.Errorf("%s: got ready %v, want %v", tt.name, got, tt.want)
		}
		if l.Ready(began.Add(30*time.Second), &Facts{}, false) || l.Ready(began.Add(31*time.Second), &f, tt.all) {
			t.Errorf("%s: ready although the proofs were interrupted", tt.name)
		}
	}
}

func TestNodeIsCutOffIfMostPeersAreLost(t *testing.T) {
	for _, tt := range []struct {
		name string
		s    Summary
		want bool
	}{
		{"no peers", Summary{}, false},
		{"nobody asked", Summary{Peers: 3, Pending: 3}, true},
		{"all answer", Summary{Peers: 3, Judged: 3}, false},
		{"one of two lost", Summary{Peers: 2, Judged: 2, JudgedLost: 1}, false},
		{"two of three lost", Summary{Peers: 3, Judged: 3, JudgedLost: 2}, true},
		{"half lost", Summary{Peers: 4, Judged: 4, JudgedLost: 2, Silent: 2}, false},
		{"one of three has answered yet", Summary{Peers: 3, Judged: 1, Waiting: 2, Silent: 2}, true},
		{"two of four have answered yet", Summary{Peers: 4, Judged: 2, Waiting: 2, Silent: 2}, false},
		{"all answered before the last change", Summary{Peers: 3, Judged: 3, Stale: 3}, true},
		{"one of two asked again has answered", Summary{Peers: 3, Judged: 3, Stale: 2, Again: 1}, false},
		{"the only peer answered before the last change", Summary{Peers: 1, Judged: 1, Stale: 1}, true},
		{"the only peer is asked again", Summary{Peers: 1, Judged: 1, Stale: 1, Again: 1}, false},
		{"others join", Summary{Peers: 9, Judged: 1, Joining: 8}, false},
		{"the first peer joins", Summary{Peers: 1, Joining: 1}, false},
		{"the only peer died", Summary{Peers: 1, Judged: 1, JudgedLost: 1}, false},
		{"the only peer never answered", Summary{Peers: 1, Judged: 1, JudgedLost: 1, Silent: 1}, true},
	} {
		if got := tt.s.CutOff() != ""; got != tt.want {
			t.Errorf("%s: got cut off %v, want %v", tt.name, got, tt.want)
		}
	}
}
