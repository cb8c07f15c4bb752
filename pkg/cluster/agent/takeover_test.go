// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// closingEngine is an engine that calls a function when it is closed.
type closingEngine struct {
	*fakeEngine
	onClose func()
}

func (e closingEngine) Close() { e.onClose() }

// routeKinds returns the kinds of the agent's routes.
func routeKinds() (kinds map[int]bool, err error) {
	routes, err := agentRoutes(routeTable)
	kinds = map[int]bool{}
	for k := range routes {
		kinds[k.kind] = true
	}
	return kinds, err
}

// replacement is a cleanup beside an agent, with what the host has at each of its steps.
type replacement struct {
	*testing.T
	host  *netlab.Host
	cfg   CleanupConfig
	agent instanceLock
	seen  []string
}

// newReplacement returns a cleanup of a host whose agent serves a tunnel, hands it over on request, and then stands by.
func newReplacement(t *testing.T, cleartext bool) *replacement {
	t.Helper()
	h, tunnel := emptyHost(t)
	r := &replacement{T: t, host: h, cfg: cleanupOf(t, tunnel)}
	r.cfg.Stay, r.cfg.Node = new(Stats), "n1"
	r.cfg.IsServed = func(string) bool { return true }
	r.cfg.Open = func(TunnelOptions, *slog.Logger) (Engine, error) {
		r.agent.release()
		return closingEngine{&fakeEngine{}, func() { r.note("tunnel closed") }}, nil
	}
	r.cfg.API = serverAnswering(t, func(*http.Request) { r.noteFromOutside("published") }, http.StatusOK)
	if held, err := r.agent.try(r.cfg.KeyDir); err != nil || !held {
		t.Fatal(held, err)
	}
	in(t, h, func() error {
		if err := addTunnel(tunnel); err != nil {
			return err
		}
		_, err := applyRouting(tunnel, &Routing{Routes: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}, Cleartext: cleartext})
		return err
	})
	return r
}

// note appends a step with the routes that the host has at that time.
func (r *replacement) note(step string) {
	kinds, err := routeKinds()
	if err != nil {
		r.Error(err)
	}
	r.seen = append(r.seen, fmt.Sprintf("%s: routes %v, blackholes %v", step, kinds[unix.RTN_UNICAST], kinds[unix.RTN_BLACKHOLE]))
}

// noteFromOutside is note for goroutines outside of the host.
func (r *replacement) noteFromOutside(step string) {
	if err := r.host.Do(func() error { r.note(step); return nil }); err != nil {
		r.Error(err)
	}
}

// run cleans up, stops the process once it is ready, and returns the steps.
func (r *replacement) run() []string {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		for !r.cfg.Stay.Ready.Load() && ctx.Err() == nil {
			sleep(ctx, standbyPoll/50)
		}
		r.noteFromOutside("ready")
		if held, err := r.agent.try(r.cfg.KeyDir); held || err != nil {
			r.Errorf("the agent that stands by gets the lock: %v, %v", held, err)
		}
		cancel()
	}()
	in(r.T, r.host, func() error { return Cleanup(ctx, r.cfg) })
	r.noteFromOutside("stopped")
	return r.seen
}

func (r *replacement) expect(want ...string) {
	r.Helper()
	if got := r.run(); fmt.Sprint(got) != fmt.Sprint(want) {
		r.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

// TestCleanupServesTunnelUntilRoutesAreGone: at no time do routes lead into a tunnel that nobody serves.
func TestCleanupServesTunnelUntilRoutesAreGone(t *testing.T) {
	newReplacement(t, true).expect(
		"published: routes true, blackholes false",
		"tunnel closed: routes false, blackholes false",
		"ready: routes false, blackholes false",
		"stopped: routes false, blackholes false",
	)
}

// TestCleanupSendsNoCleartextThatOthersRefuse: its packets enter the tunnel while it runs, and are dropped until the cleanup is stopped.
func TestCleanupSendsNoCleartextThatOthersRefuse(t *testing.T) {
	newReplacement(t, false).expect(
		"published: routes true, blackholes true",
		"tunnel closed: routes true, blackholes true",
		"ready: routes false, blackholes true",
		"stopped: routes false, blackholes false",
	)
}

// TestCleanupWaitsForAgentWithoutTunnel has agents that hand no tunnel over: in mode spread, and one that keeps it.
func TestCleanupWaitsForAgentWithoutTunnel(t *testing.T) {
	for name, served := range map[string]bool{"without a tunnel": false, "keeps the tunnel": true} {
		synctest.Test(t, func(t *testing.T) {
			var agent instanceLock
			c := cleanupOf(t, "tunnel")
			c.Config, c.Stay = c.withDefaults(), new(Stats)
			c.IsServed = func(string) bool { return served }
			c.Open = func(TunnelOptions, *slog.Logger) (Engine, error) { return nil, errServedElsewhere }
			if held, err := agent.try(c.KeyDir); !held || err != nil {
				t.Fatal(held, err)
			}
			var got takeover
			over := make(chan error)
			go func() {
				var err error
				got, err = c.takeOver(t.Context())
				over <- err
			}()
			synctest.Wait()
			if !c.Stay.Ready.Load() {
				t.Errorf("%s: not ready, so that the update would never stop the agent", name)
			}
			agent.release()
			expect.NoError(t, <-over)
			if c.Stay.Ready.Load() || got.lock.file == nil || got.engine != nil {
				t.Errorf("%s: ready before anything is removed, or without the lock: %+v", name, got)
			}
			got.end()
		})
	}
}

// TestCleanupThatCannotLockIsNotReady loses its directory while it waits for an agent that hands no tunnel over.
func TestCleanupThatCannotLockIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var agent instanceLock
		c := cleanupOf(t, "tunnel")
		c.Config, c.Stay = c.withDefaults(), new(Stats)
		c.IsServed = func(string) bool { return false }
		if held, err := agent.try(c.KeyDir); !held || err != nil {
			t.Fatal(held, err)
		}
		over := make(chan error)
		go func() {
			_, err := c.takeOver(t.Context())
			over <- err
		}()
		synctest.Wait()
		if !c.Stay.Ready.Load() {
			t.Error("not ready while it waits for the agent")
		}
		expect.NoError(t, errors.Join(os.RemoveAll(c.KeyDir), os.WriteFile(c.KeyDir, nil, 0o600)))
		expect.NoError(t, <-over)
		if c.Stay.Ready.Load() {
			t.Error("ready before anything is removed")
		}
		agent.release()
	})
}

func TestStoppedCleanupLeavesTunnelToAgent(t *testing.T) {
	var agent instanceLock
	c := cleanupOf(t, "tunnel")
	c.Config, c.Stay = c.withDefaults(), new(Stats)
	closed := false
	ctx, cancel := context.WithCancel(t.Context())
	c.IsServed = func(string) bool { return true }
	c.Open = func(TunnelOptions, *slog.Logger) (Engine, error) {
		cancel()
		return closingEngine{&fakeEngine{}, func() { closed = true }}, nil
	}
	if held, err := agent.try(c.KeyDir); !held || err != nil {
		t.Fatal(held, err)
	}
	if got, err := c.takeOver(ctx); !errors.Is(err, context.Canceled) || !closed || got.engine != nil {
		t.Errorf("got %+v, %v, tunnel closed: %v", got, err, closed)
	}
	agent.release()
}
