// SPDX-License-Identifier: Apache-2.0

package agent

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

// Limits of the server. Anybody may be able to reach its port.
const (
	headerTimeout = 5 * time.Second  // for a request's header
	readTimeout   = 10 * time.Second // for a request
	writeTimeout  = 15 * time.Second // for a request and its response
	idleTimeout   = time.Minute      // between requests: longer than a scrape interval
	maxHeader     = 12 << 10         // bytes; net/http adds 4 KiB
	maxScrapes    = 4                // concurrent responses to Prometheus
	maxClients    = 32               // connections
)

// Content is the data that Serve responds with.
type Content struct {
	Stats   *Stats
	Version string // the agent's
	Log     *slog.Logger
}

// Serve answers the kubelet's probes and Prometheus until ctx ends, and returns nil then.
// /healthz fails only if a reconcile is stuck: a cluster whose API is unreachable must not lose
// its tunnels as well. /readyz succeeds while the last reconcile did and the peers answer
// (Stats.ready). /metrics has the agent's counters, and in spread mode also the counters of
// `ropewalk spread`.
func Serve(ctx context.Context, l net.Listener, c Content) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := c.Stats.alive(); err != nil {
			http.Error(w, "stuck: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := c.Stats.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
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
		return fmt.Errorf("serving probes and metrics: %w", err)
	}
	return nil
}

// scrapeLogger is the log of promhttp. It demotes encoding errors to debug: if a client disconnects, there is one for each
// remaining metric family, and any client can do that.
type scrapeLogger struct{ log *slog.Logger }

func (l scrapeLogger) Println(v ...any) {
	level := slog.LevelWarn
	if len(v) > 0 && strings.HasPrefix(fmt.Sprint(v[0]), "error encoding") {
		level = slog.LevelDebug
	}
	l.log.Log(context.Background(), level, "answering a scrape failed", "error", strings.TrimSpace(fmt.Sprintln(v...)))
}

// connLimiter holds the open connections, oldest first. Above maxClients it closes the oldest. If new ones had to wait, a
// client that holds connections could block the kubelet's probes, and the kubelet would kill a healthy process.
type connLimiter struct {
	mu   sync.Mutex
	open []net.Conn
}

// onStateChange is the server's ConnState hook.
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
