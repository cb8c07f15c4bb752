// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/device"
)

// silentDevice has nothing to say.
type silentDevice struct{}

func (silentDevice) Status() config.Status { return config.Status{} }
func (silentDevice) Stats() any            { return device.Stats{} }

// logged is a log whose records are received from it.
type logged chan slog.Record

func (l logged) Enabled(context.Context, slog.Level) bool { return true }
func (l logged) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l logged) WithGroup(string) slog.Handler            { return l }

func (l logged) Handle(_ context.Context, r slog.Record) error {
	select {
	case l <- r:
	default: // nobody reads any more
	}
	return nil
}

// TestTheMetricsAddressOfTheDaemonBeforeIsWaitedFor: the tunnel is served meanwhile.
func TestTheMetricsAddressOfTheDaemonBeforeIsWaitedFor(t *testing.T) {
	before, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	flags := metricsFlags{addr: before.Addr().String()}
	waits := make(logged, 100)
	s, err := flags.server(slog.New(waits))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.start(ctx, flags.content(silentDevice{}))
	select {
	case first := <-waits:
		if !strings.HasPrefix(first.Message, "waiting") {
			t.Fatal(first.Message)
		}
	case <-s.ended:
		t.Fatal("it has not waited")
	}
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		answer, err := http.Get("http://" + flags.addr + "/healthz")
		if err == nil {
			answer.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	cancel()
	s.close()
}

// TestAMetricsAddressThatIsServedIsLoggedBeforeTheTunnelIs, for who looks into the log once that answers.
func TestAMetricsAddressThatIsServedIsLoggedBeforeTheTunnelIs(t *testing.T) {
	flags := metricsFlags{addr: "127.0.0.1:0"}
	said := make(logged, 100)
	s, err := flags.listen(slog.New(said))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.start(ctx, flags.content(silentDevice{}))
	select {
	case first := <-said:
		if first.Message != "serving metrics" {
			t.Error(first.Message)
		}
	default:
		t.Error("nothing is logged yet")
	}
	cancel()
	s.close()
}

// TestOnlyTheMetricsAddressIsWaitedFor: what else is wrong with the flags is found while the daemon before is there.
func TestOnlyTheMetricsAddressIsWaitedFor(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	before, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	taken := before.Addr().String()
	if s, err := (&metricsFlags{addr: taken}).succeed(log); err != nil || s == nil || s.server != nil {
		t.Errorf("an address that is taken: %+v, %v", s, err)
	}
	if s, err := (&metricsFlags{addr: taken, config: t.TempDir() + "/none.yml"}).succeed(log); err == nil || s != nil {
		t.Errorf("a config that is not there: %+v", s)
	}
	if s, err := (&metricsFlags{addr: "127.0.0.1:http:0"}).succeed(log); err == nil || s != nil {
		t.Errorf("no address: %+v", s)
	}
	s, err := (&metricsFlags{addr: "127.0.0.1:0"}).succeed(log)
	if err != nil || s.server == nil {
		t.Fatalf("an address that is free: %+v, %v", s, err)
	}
	s.close()
}

func TestWhoWaitsForAMetricsAddressCanBeStopped(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	said := make(logged, 100)
	flags := metricsFlags{addr: other.Addr().String()}
	s, err := flags.server(slog.New(said))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.start(ctx, flags.content(silentDevice{}))
	cancel()
	s.close()
	close(said)
	for r := range said {
		if r.Level >= slog.LevelWarn {
			t.Errorf("it has waited to the end: %s", r.Message)
		}
	}
}
