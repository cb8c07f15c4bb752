// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

func TestInstanceLockHasOneHolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	var a, b instanceLock
	for _, step := range []struct {
		what string
		lock *instanceLock
		want bool
	}{{"the first", &a, true}, {"the first again", &a, true}, {"the second", &b, false}} {
		if held, err := step.lock.try(dir); err != nil || held != step.want {
			t.Errorf("%s: %v, %v", step.what, held, err)
		}
	}
	a.release()
	if held, err := b.try(dir); err != nil || !held {
		t.Errorf("after release: %v, %v", held, err)
	}
	b.release()
	if _, err := (&instanceLock{}).try("/dev/null/keys"); err == nil {
		t.Error("no error for a directory that cannot exist")
	}
}

// TestSupersededAgentStandsBy: it publishes nothing, and opens the tunnel again when nobody serves it.
func TestSupersededAgentStandsBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, engine := newTestMeshReconciler(t)
		var served atomic.Bool
		a := &Agent{cfg: m.cfg}
		a.cfg.IsServed = func(string) bool { return served.Load() }
		a.active, a.mode = m, mesh.ModeMesh
		own := meshNode(0, noise.PublicKey{})
		in := reconcileInput{self: own, nodes: []mesh.Node{own}}
		m.mustReconcile(t, in)
		first := engine()
		if a.isSuperseded() {
			t.Error("superseded while its engine runs")
		}
		first.handedOver.Store(true)
		close(first.done)
		if _, err := m.reconcile(t.Context(), in); !a.isSuperseded() || !errors.Is(err, errHandedOver) || engine() != first {
			t.Errorf("after a handover: superseded %v, %v, another engine: %v", a.isSuperseded(), err, engine() != first)
		}
		served.Store(true)
		over := make(chan struct{})
		go func() {
			a.standBy(t.Context())
			close(over)
		}()
		synctest.Wait()
		if active, _ := a.stats.Standby(); !active {
			t.Error("it does not stand by")
		}
		served.Store(false)
		<-over
		if active, _ := a.stats.Standby(); active || a.isSuperseded() {
			t.Error("it stands by although nobody serves the tunnel")
		}
		m.mustReconcile(t, in)
		if engine() == first {
			t.Error("the tunnel was not opened again")
		}
		a.lock.release()
	})
}

// TestStoppedStandbyLeavesTunnelToTheOther has an agent that stands by receive SIGTERM, as at the end of a rolling update.
func TestStoppedStandbyLeavesTunnelToTheOther(t *testing.T) {
	opened := 0
	engine := &fakeEngine{done: make(chan struct{})}
	a, _, _ := newSyncedAgent(t, func(c *Config) {
		c.IsServed = func(string) bool { return true }
		c.Open = func(TunnelOptions, *slog.Logger) (Engine, error) {
			opened++
			return engine, nil
		}
	}, ownedByNodeA())
	ctx, cancel := context.WithCancel(t.Context())
	a.queue.Add(hostChanged)
	if a.processNext(ctx); opened != 1 {
		t.Fatal("no tunnel")
	}
	_, changed := a.stats.Standby()
	engine.handedOver.Store(true)
	close(engine.done) // triggers a reconcile
	go func() {
		<-changed // it stands by
		cancel()
	}()
	a.processNext(ctx)
	for a.queue.Len() > 0 && a.processNext(ctx) {
	}
	if opened != 1 {
		t.Error("it took the tunnel back")
	}
	a.lock.release()
}

// TestAgentWaitsForItsTurn has an agent without a tunnel, in the other mode, which cannot hand anything over.
func TestAgentWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		var other instanceLock
		if held, err := other.try(dir); !held || err != nil {
			t.Fatal(held, err)
		}
		a := &Agent{cfg: Config{KeyDir: dir, Log: slog.New(slog.DiscardHandler)}}
		a.cfg.IsServed = func(string) bool { return false }
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		over := make(chan struct{})
		go func() {
			a.awaitTurn(ctx)
			close(over)
		}()
		synctest.Wait()
		if !a.stats.Ready.Load() {
			t.Error("not ready: the update would never stop the other agent")
		}
		other.release()
		<-over
		if a.stats.Ready.Load() || a.lock.file == nil {
			t.Error("ready before the first reconcile, or without the lock")
		}
		a.lock.release()
	})
}
