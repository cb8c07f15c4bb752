// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/meshmode"
	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
)

func TestServeAnswersProbesAndMetrics(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var s Stats
	done := make(chan struct{})
	var log logged
	go func() {
		defer close(done)
		if err := Serve(t.Context(), l, Content{&s, "test", slog.New(slog.NewTextHandler(&log, nil))}); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { <-done })
	get := func(path string) (int, string) {
		t.Helper()
		r, err := http.Get("http://" + l.Addr().String() + path)
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

func TestServeReportsListenerFailure(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), l, Content{new(Stats), "test", slog.New(slog.DiscardHandler)}); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
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

func TestIdleConnectionsDoNotBlockProbes(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var s Stats
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = Serve(t.Context(), l, Content{&s, "test", slog.New(slog.DiscardHandler)})
	}()
	t.Cleanup(func() { <-done })
	var oldest net.Conn
	for i := range maxClients + 1 {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i == 0 {
			oldest = c
		}
		if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if answer, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(answer, "200") {
			t.Fatalf("client %d: got %q, error %v, want %q in it, no error", i, answer, err, "200")
		}
	}
	if err := oldest.SetReadDeadline(time.Now().Add(idleTimeout / 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, oldest); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the oldest connection above the limit is still open")
	}
}

func TestUnreadResponseTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		var s Stats
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_ = Serve(ctx, &one{conn: server, closed: make(chan struct{})}, Content{&s, "test", slog.New(slog.DiscardHandler)})
		}()
		if _, err := io.WriteString(client, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * writeTimeout)
		if _, err := io.Copy(io.Discard, client); err != nil {
			t.Error(err)
		}
		if time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) > 3*writeTimeout {
			t.Error("the server still waits for the reader")
		}
		cancel()
		synctest.Wait()
	})
}

// one is a listener with one connection.
type one struct {
	conn   net.Conn
	closed chan struct{}
	once   sync.Once
}

func (o *one) Accept() (c net.Conn, err error) {
	if c, o.conn = o.conn, nil; c != nil {
		return c, nil
	}
	<-o.closed
	return nil, net.ErrClosed
}

func (o *one) Close() error {
	o.once.Do(func() { close(o.closed) })
	return nil
}

func (o *one) Addr() net.Addr { return &net.TCPAddr{} }
