// SPDX-License-Identifier: Apache-2.0

package meshmode

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// TestFailingReconcilesAreRequestedEverLater has a peer that answers, and routes that cannot be set.
func TestFailingReconcilesAreRequestedEverLater(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	p := &Prover{Log: log, Guard: &Guard{Host: &fakePrograms{}, Log: log}}
	peer := proof.Peer{Key: noise.PublicKey{1}}
	p.Applied(Applied{Peers: []proof.Peer{peer}, Strictness: proof.Permissive})
	now := time.Now()
	p.tracker.Counted(now, []config.PeerStatus{{PublicKey: peer.Key, LastHandshake: now.Add(time.Second)}})
	requests := func() (n int) {
		for range 600 {
			now = now.Add(time.Second)
			if p.matters(now) {
				n++
				p.Failed(proof.RoutesMissing, "no routes")
				p.Outcome()
			}
		}
		return n
	}
	if n := requests(); n < 10 || n > 16 {
		t.Errorf("got %d requests in ten minutes, want one after 2, 4, 8, 16, 32 s and then each minute", n)
	}
	p.Applied(Applied{Peers: []proof.Peer{peer}, Strictness: proof.Permissive})
	now = now.Add(triggerInterval)
	if !p.matters(now) {
		t.Error("a reconcile that succeeded does not end the wait")
	}
}

// TestChangeAtTheStartNeedsNewAnswers: an agent that has changed the host is not ready by answers from before.
func TestChangeAtTheStartNeedsNewAnswers(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, changed := range []bool{false, true} {
		p := &Prover{Log: log, Guard: &Guard{Host: &fakePrograms{}, Log: log}}
		a := Applied{Peers: []proof.Peer{{Key: noise.PublicKey{1}}}}
		p.Applied(a)
		now := time.Now()
		p.tracker.Counted(now, []config.PeerStatus{{PublicKey: noise.PublicKey{1}, LastHandshake: now.Add(time.Second)}})
		a.Changed = changed
		p.Applied(a)
		if s, _ := p.Seen(); (s.CutOff() != "") != changed {
			t.Errorf("changed %v: got %q", changed, s.CutOff())
		}
	}
}

// quantumEngine is an Engine without peers.
type quantumEngine struct {
	policy config.PostQuantum
	err    error
}

func (e *quantumEngine) Probe(...noise.PublicKey) (map[noise.PublicKey]config.PeerProbe, error) {
	return nil, nil
}

func (e *quantumEngine) StatusOf(...noise.PublicKey) (config.Status, error) {
	return config.Status{}, nil
}

func (e *quantumEngine) PostQuantum() (*config.PostQuantumReport, error) {
	return &config.PostQuantumReport{Policy: e.policy}, e.err
}

// TestPostQuantumIsUnknownWithoutCount: neither before the first count under a policy, nor long after the last one.
func TestPostQuantumIsUnknownWithoutCount(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	e := &quantumEngine{policy: config.PostQuantumAuto}
	p := &Prover{Engine: e, Log: log, Guard: &Guard{Host: &fakePrograms{}, Log: log}}
	start := time.Now()
	check := func(after time.Duration, reason string) {
		t.Helper()
		facts, _ := p.facts(start.Add(after))
		all := proof.ConditionsOf(start, &facts)
		if got := all[len(all)-1]; got.Type != proof.PostQuantum || got.Reason != reason {
			t.Errorf("after %s: got %+v, want %s", after, got, reason)
		}
	}
	p.Applied(Applied{PostQuantum: config.PostQuantumRequired})
	check(0, "NotCounted")
	p.count(start)
	check(0, "NotApplied")
	e.policy = config.PostQuantumRequired
	p.count(start.Add(quantumInterval))
	check(quantumInterval, "NoSessions")
	e.err = errors.New("no answer")
	p.count(start.Add(3 * quantumInterval))
	check(4*quantumInterval, "NoSessions")
	check(5*quantumInterval, "NotCounted")
	p.Applied(Applied{PostQuantum: config.PostQuantumAuto})
	check(quantumInterval, "NotCounted")
}
