// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// What a client may cost. Whoever reaches the port may be nobody's friend, and the process is the tunnel.
const (
	headerTimeout = 5 * time.Second  // for a request's head
	readTimeout   = 10 * time.Second // for a whole request
	writeTimeout  = 15 * time.Second // for a request and its answer
	idleTimeout   = time.Minute      // between requests: more than an interval of scrapes
	maxHeader     = 12 << 10         // bytes; net/http adds 4 KiB
	maxScrapes    = 4                // answers to Prometheus in the making
	maxClients    = 32               // connections
)

// Content is what Serve answers with.
type Content struct {
	Stats   *Stats
	Version string // the agent's
	Log     *slog.Logger
}

// Serve answers the kubelet's probes and Prometheus until ctx ends, and returns nil then. /healthz is well unless a look never
// ends: a cluster whose API is away must not lose its tunnels too. /readyz is while all on the node is as it should be, or
// was when the API was last there. /metrics has the agent's counters, and in mesh mode those of `ropewalk run`, in spread mode those
// of `ropewalk spread`.
func Serve(ctx context.Context, l net.Listener, c Content) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if !c.Stats.alive() {
			http.Error(w, "stuck", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !c.Stats.Ready.Load() {
			http.Error(w, "not everything is as it should be", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(newRegistry(c.Stats, c.Version), promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: scrapeLogger{c.Log}, MaxRequestsInFlight: maxScrapes,
	}))
	server := &http.Server{
		Handler: http.MaxBytesHandler(mux, 0), ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ConnState: new(connLimiter).onStateChange,
		ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("answering probes: %w", err)
	}
	return nil
}

// scrapeLogger is promhttp's. That a client went away it would say for each of the families that are left, and anybody can go away.
type scrapeLogger struct{ log *slog.Logger }

func (l scrapeLogger) Println(v ...any) {
	level := slog.LevelWarn
	if len(v) > 0 && strings.HasPrefix(fmt.Sprint(v[0]), "error encoding") {
		level = slog.LevelDebug
	}
	l.log.Log(context.Background(), level, "answering a scrape", "error", strings.TrimSpace(fmt.Sprintln(v...)))
}

// connLimiter are the connections that are open, the eldest first. Of too many that one goes, rather than that the newest waits:
// who holds connections would keep the kubelet from asking, which then ends a process that is well.
type connLimiter struct {
	mu   sync.Mutex
	open []net.Conn
}

// onStateChange is for http.Server.ConnState.
func (c *connLimiter) onStateChange(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if c.open = append(c.open, conn); len(c.open) > maxClients {
			_ = c.open[0].Close()
			c.open = slices.Delete(c.open, 0, 1)
		}
	case http.StateClosed:
		c.open = slices.DeleteFunc(c.open, func(o net.Conn) bool { return o == conn })
	}
}
