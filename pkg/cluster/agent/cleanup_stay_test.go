// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/cluster/host"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// forgetfulEngine is an engine that calls a function when its configuration is removed.
type forgetfulEngine struct {
	*fakeEngine
	onForget func()
}

func (e forgetfulEngine) Forget() error {
	e.onForget()
	return nil
}

// replacement is a cleanup in the place of an agent, with what the host has at each of its steps.
type replacement struct {
	*testing.T
	host *netlab.Host
	cfg  CleanupConfig
	seen []string
}

// newReplacement returns a cleanup of a host whose engine serves a tunnel.
func newReplacement(t *testing.T, cleartext bool) *replacement {
	t.Helper()
	h, tunnel := emptyHost(t)
	r := &replacement{T: t, host: h, cfg: cleanupOf(t, tunnel)}
	r.cfg.Stay, r.cfg.Node = new(Stats), "n1"
	r.cfg.Engine = forgetfulEngine{&fakeEngine{}, func() { r.note("tunnel ends") }}
	r.cfg.API = serverAnswering(t, func(*http.Request) { r.noteFromOutside("published") }, http.StatusOK)
	in(t, h, func() error {
		if err := addTunnel(tunnel); err != nil {
			return err
		}
		_, err := (host.System{}).SetRoutes(tunnel, &host.Routing{Routes: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}, Cleartext: cleartext})
		return err
	})
	return r
}

// note appends a step with the routes that the host has at that time.
func (r *replacement) note(step string) {
	kinds, err := host.RouteTypes()
	if err != nil {
		r.Error(err)
	}
	seen := fmt.Sprintf("%s: routes %v, blackholes %v", step, kinds[unix.RTN_UNICAST] > 0, kinds[unix.RTN_BLACKHOLE] > 0)
	if !slices.Contains(r.seen, seen) { // two objects are published
		r.seen = append(r.seen, seen)
	}
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
			sleep(ctx, lockPoll/50)
		}
		r.noteFromOutside("ready")
		var agent instanceLock
		if held, err := agent.try(r.cfg.KeyDir); held || err != nil {
			r.Errorf("an agent that starts meanwhile gets the lock: %v, %v", held, err)
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

// TestCleanupLeavesTunnelUntilRoutesAreGone: at no time do routes lead into a tunnel that nobody serves.
func TestCleanupLeavesTunnelUntilRoutesAreGone(t *testing.T) {
	newReplacement(t, true).expect(
		"published: routes true, blackholes false",
		"tunnel ends: routes false, blackholes false",
		"ready: routes false, blackholes false",
		"stopped: routes false, blackholes false",
	)
}

// TestCleanupSendsNoCleartextThatOthersRefuse: its packets enter the tunnel while it runs, and are dropped until the cleanup is stopped.
func TestCleanupSendsNoCleartextThatOthersRefuse(t *testing.T) {
	newReplacement(t, false).expect(
		"published: routes true, blackholes true",
		"tunnel ends: routes true, blackholes true",
		"ready: routes false, blackholes true",
		"stopped: routes false, blackholes false",
	)
}

// TestCleanupWaitsForAgent: it removes nothing, and is not ready, while an agent runs.
func TestCleanupWaitsForAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var agent, lock instanceLock
		c := cleanupOf(t, "tunnel")
		c.Config, c.Stay = c.withDefaults(), new(Stats)
		if held, err := agent.try(c.KeyDir); !held || err != nil {
			t.Fatal(held, err)
		}
		over := make(chan error)
		go func() { over <- c.takeLock(t.Context(), &lock) }()
		synctest.Wait()
		select {
		case err := <-over:
			t.Errorf("it does not wait for the agent: %v", err)
		default:
		}
		if c.Stay.Ready.Load() {
			t.Error("ready while an agent runs")
		}
		agent.release()
		expect.NoError(t, <-over)
		if c.Stay.Ready.Load() || lock.file == nil {
			t.Error("ready before anything is removed, or without the lock")
		}
		lock.release()
	})
}

func TestStoppedCleanupRemovesNothing(t *testing.T) {
	var agent instanceLock
	c := cleanupOf(t, "tunnel")
	c.Stay, c.Engine = new(Stats), forgetfulEngine{&fakeEngine{}, func() { t.Error("the engine's configuration was removed") }}
	if held, err := agent.try(c.KeyDir); !held || err != nil {
		t.Fatal(held, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Cleanup(ctx, c); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	agent.release()
}
