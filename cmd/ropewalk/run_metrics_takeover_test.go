// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/test/expect"
)

// silentDevice has an empty status.
type silentDevice struct{}

func (silentDevice) Status() config.Status { return config.Status{} }
func (silentDevice) Stats() any            { return device.Stats{} }
func (silentDevice) StuckLanes() []string  { return nil }

// logged is a slog.Handler that sends its records to a channel.
type logged chan slog.Record

func (l logged) Enabled(context.Context, slog.Level) bool { return true }
func (l logged) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l logged) WithGroup(string) slog.Handler            { return l }

func (l logged) Handle(_ context.Context, r slog.Record) error {
	select {
	case l <- r:
	default: // the test does not read any more
	}
	return nil
}

func TestMetricsWaitForAddressOfOldDaemon(t *testing.T) {
	oldDaemon, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	flags := metricsFlags{addr: oldDaemon.Addr().String()}
	records := make(logged, 100)
	s, err := flags.server(slog.New(records))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.start(ctx, flags.content(silentDevice{}))
	select {
	case first := <-records:
		if !strings.Contains(first.Message, "waiting") {
			t.Fatal(first.Message)
		}
	case <-s.ended:
		t.Fatal("the server has not waited")
	}
	if err := oldDaemon.Close(); err != nil {
		t.Fatal(err)
	}
	expect.EventuallyNoError(t, "the successor serves", func() error {
		answer, err := http.Get("http://" + flags.addr + "/healthz")
		if err == nil {
			answer.Body.Close()
		}
		return err
	})
	cancel()
	s.close()
}

// TestMetricsAddressIsLoggedBeforeServing: scripts read the address from the log once the tunnel is ready.
func TestMetricsAddressIsLoggedBeforeServing(t *testing.T) {
	flags := metricsFlags{addr: "127.0.0.1:0"}
	records := make(logged, 100)
	s, err := flags.listen(slog.New(records))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.start(ctx, flags.content(silentDevice{}))
	select {
	case first := <-records:
		if first.Message != "serving metrics" {
			t.Error(first.Message)
		}
	default:
		t.Error("nothing is logged yet")
	}
	cancel()
	s.close()
}

// TestOtherMetricsErrorsAreNotWaitedFor: they are returned while the old daemon still serves the tunnel.
func TestOtherMetricsErrorsAreNotWaitedFor(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	oldDaemon, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer oldDaemon.Close()
	inUse := oldDaemon.Addr().String()
	if s, err := (&metricsFlags{addr: inUse}).listenOrWait(log); err != nil || s == nil || s.server != nil {
		t.Errorf("an address in use: got %+v, error %v, want non-nil, no error", s, err)
	}
	if s, err := (&metricsFlags{addr: inUse, config: t.TempDir() + "/none.yml"}).listenOrWait(log); err == nil || s != nil {
		t.Errorf("a missing config: got %+v, want nil", s)
	}
	if s, err := (&metricsFlags{addr: "127.0.0.1:http:0"}).listenOrWait(log); err == nil || s != nil {
		t.Errorf("an invalid address: got %+v, want nil", s)
	}
	s, err := (&metricsFlags{addr: "127.0.0.1:0"}).listenOrWait(log)
	if err != nil || s.server == nil {
		t.Fatalf("a free address: got %+v, error %v, want no error", s, err)
	}
	s.close()
}

func TestWaitingForMetricsAddressIsCancelled(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	records := make(logged, 100)
	flags := metricsFlags{addr: other.Addr().String()}
	s, err := flags.server(slog.New(records))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.start(ctx, flags.content(silentDevice{}))
	cancel()
	s.close()
	close(records)
	for r := range records {
		if r.Level >= slog.LevelWarn {
			t.Errorf("the wait was not cancelled: %s", r.Message)
		}
	}
}
