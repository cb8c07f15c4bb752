// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

func TestPostQuantumConditionNamesTheWorst(t *testing.T) {
	for _, tt := range []struct {
		f      Facts
		status Status
		reason string
	}{
		{Facts{}, Unknown, "NotCounted"},
		{Facts{PostQuantum: PostQuantumFacts{Wanted: config.PostQuantumRequired}}, Unknown, "NotCounted"},
		{Facts{Strictness: Permissive}, Unknown, "Off"},
		{Facts{Strictness: Permissive, PostQuantum: PostQuantumFacts{Counted: true, Wanted: config.PostQuantumOff, Unsupported: true}}, Unknown, "Off"},
		{Facts{PostQuantum: PostQuantumFacts{Counted: true, Has: config.PostQuantumAuto, Active: 3}}, False, "NotApplied"},
		{Facts{PostQuantum: PostQuantumFacts{Counted: true, Wanted: config.PostQuantumRequired, Has: config.PostQuantumAuto, Active: 3}}, False, "NotApplied"},
		{Facts{Tunnel: EngineAbsent, PostQuantum: PostQuantumFacts{Counted: true, Wanted: config.PostQuantumAuto, Has: config.PostQuantumAuto, Active: 1}}, Unknown, "TunnelDown"},
		{Facts{PostQuantum: PostQuantumFacts{Counted: true, Wanted: config.PostQuantumAuto, Unsupported: true}}, False, "EngineOutdated"},
		{Facts{PostQuantum: PostQuantumFacts{Counted: true, Wanted: config.PostQuantumAuto, Has: config.PostQuantumAuto}}, Unknown, "NoSessions"},
		{Facts{PostQuantum: PostQuantumFacts{Counted: true, Wanted: config.PostQuantumAuto, Has: config.PostQuantumAuto, Active: 3}}, True, "Active"},
		{Facts{PostQuantum: PostQuantumFacts{Counted: true, Wanted: config.PostQuantumAuto, Has: config.PostQuantumAuto, Active: 3, Classical: 1}}, False, "Classical"},
		{Facts{PostQuantum: PostQuantumFacts{Counted: true, Wanted: config.PostQuantumAuto, Has: config.PostQuantumAuto, Active: 3, Classical: 2, Downgraded: 1}}, False, "Downgraded"},
		{Facts{PostQuantum: PostQuantumFacts{Counted: true, Wanted: config.PostQuantumAuto, Has: config.PostQuantumAuto, Active: 3, Classical: 2, Downgraded: 1, Blocked: 1}}, False, "Blocked"},
	} {
		if got := postQuantum(&tt.f); got.Type != PostQuantum || got.Status != tt.status || got.Reason != tt.reason || got.Message == "" {
			t.Errorf("%+v: got %+v, want %s %s", tt.f.PostQuantum, got, tt.status, tt.reason)
		}
	}
}

// TestSessionsAreClassicalAfterATime: the first session with a node has no key, also of a node that restarts.
func TestSessionsAreClassicalAfterATime(t *testing.T) {
	now, node, other := time.Unix(1e9, 0), noise.PublicKey{1}, noise.PublicKey{2}
	isNode := func(key noise.PublicKey) bool { return key == node }
	var q PostQuantumTracker
	after := func(d time.Duration, p config.PeerPostQuantum) PostQuantumFacts {
		now = now.Add(d)
		report := config.PostQuantumReport{Policy: config.PostQuantumAuto, Peers: map[string]config.PeerPostQuantum{node.Base64(): p}}
		peers := []config.PeerStatus{{PublicKey: node, LastHandshake: now.Add(-time.Minute)}, {PublicKey: other, LastHandshake: now}}
		q.Counted(now, config.PostQuantumAuto, &report, peers, isNode)
		return q.Facts()
	}
	for i, tt := range []struct {
		pause time.Duration
		peer  config.PeerPostQuantum
		want  PostQuantumFacts
	}{
		{0, config.PeerPostQuantum{}, PostQuantumFacts{}},
		{20 * time.Second, config.PeerPostQuantum{}, PostQuantumFacts{}},
		{20 * time.Second, config.PeerPostQuantum{}, PostQuantumFacts{Classical: 1}},
		{20 * time.Second, config.PeerPostQuantum{Active: true}, PostQuantumFacts{Active: 1}},
		{20 * time.Second, config.PeerPostQuantum{}, PostQuantumFacts{}},
		{20 * time.Second, config.PeerPostQuantum{Downgraded: true}, PostQuantumFacts{Downgraded: 1}},
		{20 * time.Second, config.PeerPostQuantum{Blocked: true}, PostQuantumFacts{Blocked: 1, Classical: 1}},
	} {
		tt.want.Counted, tt.want.Wanted, tt.want.Has = true, config.PostQuantumAuto, config.PostQuantumAuto
		if got := after(tt.pause, tt.peer); got != tt.want {
			t.Errorf("step %d: got %+v, want %+v", i, got, tt.want)
		}
	}
	q.Counted(now, config.PostQuantumAuto, nil, nil, isNode)
	if got, want := q.Facts(), (PostQuantumFacts{Counted: true, Wanted: config.PostQuantumAuto, Unsupported: true}); got != want {
		t.Errorf("an engine that does not know exchanges: got %+v, want %+v", got, want)
	}
}

// TestIdlePeersAreNotClassical: without a session there is nothing to read.
func TestIdlePeersAreNotClassical(t *testing.T) {
	now := time.Unix(1e9, 0)
	var q PostQuantumTracker
	peers := []config.PeerStatus{{PublicKey: noise.PublicKey{1}, LastHandshake: now.Add(-4 * time.Minute)}}
	for range 5 {
		now = now.Add(time.Minute)
		q.Counted(now, config.PostQuantumAuto, &config.PostQuantumReport{Policy: config.PostQuantumAuto}, peers, func(noise.PublicKey) bool { return true })
	}
	if got, want := q.Facts(), (PostQuantumFacts{Counted: true, Wanted: config.PostQuantumAuto, Has: config.PostQuantumAuto}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
