// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/meshmode"
	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/observe/metrics"
)

func TestServeAnswersProbesAndMetrics(t *testing.T) {
	var log logged
	server, err := metrics.Listen(metrics.ServerConfig{Addr: "127.0.0.1:0", Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	var s Stats
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(t.Context(), contentOf(&s, "test")); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { <-done })
	get := func(path string) (int, string) {
		t.Helper()
		r, err := http.Get("http://" + server.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(b)
	}
	if code, _ := get("/healthz"); code != http.StatusOK {
		t.Error("/healthz before the first reconcile:", code)
	}
	if code, _ := get("/readyz"); code != http.StatusServiceUnavailable {
		t.Error("/readyz before the first reconcile:", code)
	}
	s.busySince.Store(time.Now().Add(-time.Second).UnixNano())
	if code, _ := get("/healthz"); code != http.StatusOK {
		t.Error("/healthz during a short reconcile:", code)
	}
	s.busySince.Store(time.Now().Add(-2 * maxReconcileTime).UnixNano())
	if code, _ := get("/healthz"); code != http.StatusServiceUnavailable {
		t.Error("/healthz during a stuck reconcile:", code)
	}
	s.busySince.Store(0)
	s.Ready.Store(true)
	s.Drift.Add(3)
	s.update(&result{
		spread: func(context.Context) ([]spreader.DeviceStatus, error) {
			return []spreader.DeviceStatus{{Device: "eth0", Spread: spreader.HookStatus{Kind: "tcx", State: "attached"}}}, nil
		},
	}, nil)
	if code, _ := get("/readyz"); code != http.StatusOK {
		t.Error("/readyz after a successful reconcile:", code)
	}
	seen := seenNow(func() (proof.Summary, meshmode.GuardCounts) {
		return proof.Summary{Peers: 3, Lost: 2, Judged: 3, JudgedLost: 2}, meshmode.GuardCounts{}
	})
	s.seen.Store(&seen)
	if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "2 of 3 peers") {
		t.Error("/readyz while most peers are lost:", code, body)
	}
	s.seen.Store(nil)
	_, text := get("/metrics")
	for _, want := range []string{
		"# TYPE ropewalk_agent_drift_total counter\nropewalk_agent_drift_total 3\n",
		"ropewalk_spread_attached{device=\"eth0\",hook=\"spread\",kind=\"tcx\"} 1\n",
		"version=\"test\"} 1\n", "process_resident_memory_bytes ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %s in\n%s", want, text)
		}
	}
	s.update(&result{spread: func(context.Context) ([]spreader.DeviceStatus, error) { return nil, errors.New("not permitted") }}, nil)
	code, text := get("/metrics")
	if code != http.StatusOK || !strings.Contains(text, "ropewalk_agent_drift_total 3\n") {
		t.Errorf("/metrics without readable programs: %d\n%s", code, text)
	}
	if !strings.Contains(log.String(), "not permitted") {
		t.Errorf("the log lacks the reason: got %q, want %q in it", log.String(), "not permitted")
	}
}

// logged is a log that may be read concurrently.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
