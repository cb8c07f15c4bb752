// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

func TestPeerIsUnresponsiveOnlyAfterFailedHandshakes(t *testing.T) {
	begin := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	type sample struct {
		at, handshake int // seconds; a handshake of -1: never
		sent          uint64
		silent        bool
	}
	for name, samples := range map[string][]sample{
		"answers":                    {{0, 0, 100, false}, {300, 280, 900, false}, {600, 590, 1900, false}},
		"idle":                       {{0, 0, 100, false}, {300, 0, 100, false}, {600, 0, 100, false}, {900, 0, 100, false}},
		"never talked to":            {{0, -1, 0, false}, {300, -1, 0, false}, {600, -1, 0, false}},
		"sent to until the end":      {{0, 0, 100, false}, {179, 0, 900, false}, {300, 0, 1000, false}, {600, 0, 1000, false}},
		"tried right now":            {{0, 0, 100, false}, {300, 0, 100, false}, {600, 0, 248, false}, {601, 600, 300, false}, {900, 600, 300, false}},
		"peer went down":             {{0, 0, 100, false}, {300, 0, 248, false}, {600, 0, 5000, false}, {689, 0, 6000, false}, {690, 0, 6000, true}, {2000, 0, 6000, true}},
		"came back":                  {{0, 0, 0, false}, {300, 0, 1, false}, {600, 0, 2, false}, {900, 0, 3, true}, {1200, 1100, 4, false}},
		"never answered":             {{0, -1, 148, false}, {10, -1, 296, false}, {99, -1, 444, false}, {100, -1, 444, true}},
		"a counter that began anew":  {{300, 0, 9000, false}, {600, 0, 0, false}, {900, 0, 0, false}},
		"a try that was given up on": {{300, 0, 0, false}, {400, 0, 148, false}, {600, 0, 148, true}, {900, 0, 148, true}},
	} {
		var s UnresponsiveDetector
		for _, l := range samples {
			p := config.PeerStatus{TxBytes: l.sent}
			if l.handshake >= 0 {
				p.LastHandshake = at(l.handshake)
			}
			if got := s.Update(at(l.at), []config.PeerStatus{p}); (len(got) == 1) != l.silent {
				t.Errorf("%s, at %d s: silent is %v", name, l.at, !l.silent)
			}
		}
		if got := s.Update(at(5000), nil); len(got) > 0 || len(s.peers) > 0 {
			t.Errorf("%s: a peer that is gone is still known", name)
		}
	}
}

// TestUpdateOfSamePeersAllocatesNothing: an agent with thousands of peers updates the detector in each reconcile.
func TestUpdateOfSamePeersAllocatesNothing(t *testing.T) {
	var s UnresponsiveDetector
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	have := make([]config.PeerStatus, 100)
	for i := range have {
		have[i].PublicKey = noise.PublicKey{byte(i)}
	}
	s.Update(now, have)
	if n := testing.AllocsPerRun(10, func() { s.Update(now, have) }); n > 0 {
		t.Errorf("got %v allocations for the same peers, want none", n)
	}
	replaced := have[7].PublicKey
	have[7].PublicKey = noise.PublicKey{200}
	s.Update(now, have)
	if _, known := s.peers[replaced]; known || len(s.peers) != len(have) {
		t.Errorf("got %d peers after one was replaced, want %d without that one", len(s.peers), len(have))
	}
}
