// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"

	"github.com/ropewalk/ropewalk/pkg/netio/connlimit"
)

// Limits on clients. The server runs in the process that carries packets, and clients may be hostile.
const (
	headerTimeout = 5 * time.Second  // for the header of a request
	readTimeout   = 10 * time.Second // for a whole request
	writeTimeout  = 30 * time.Second // for a request and its response
	maxHeader     = 16 << 10         // bytes of a header
	maxClients    = 32               // connections; a new one replaces an older one (connlimit.Listen)
	maxScrapes    = 4                // concurrent scrapes
	closeTimeout  = 2 * time.Second  // for responses in progress when the server stops
	headerSlack   = 4 << 10          // bytes that net/http adds to maxHeader
)

// ServerConfig configures a Server.
type ServerConfig struct {
	Addr      string // host:port; port 0 lets the kernel choose
	WebConfig string // file for TLS and basic authentication, in the format of the exporter toolkit; empty for neither
	Log       *slog.Logger
}

// Content is the source of a Server's answers.
type Content struct {
	Version    string
	Collectors []prometheus.Collector
	Alive      func() error // returns why the process should be restarted, nil if it should not; may be nil
	Ready      func() error // returns why the tunnel is not ready, nil if it is; may be nil
	Partial    bool         // if some metrics fail, a scrape has the others; otherwise it fails
}

// Server serves /metrics and the health checks /healthz and /readyz.
type Server struct {
	cfg      ServerConfig
	listener net.Listener
}

// Listen binds the address and validates the web config, so that errors in either are known before the tunnel starts. The
// error wraps syscall.EADDRINUSE if another process listens on the address.
func Listen(cfg ServerConfig) (*Server, error) {
	if err := web.Validate(cfg.WebConfig); err != nil {
		return nil, fmt.Errorf("reading the metrics config %s: %w", cfg.WebConfig, unquoted{err})
	}
	l, err := net.Listen("tcp", cfg.Addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("serving metrics on %s: another program listens on this address: %w", cfg.Addr, err)
	}
	if err != nil {
		return nil, fmt.Errorf("serving metrics on %s: %w", cfg.Addr, err)
	}
	return &Server{cfg: cfg, listener: connlimit.Listen(l, maxClients)}, nil
}

// unquoted is an error of the YAML parser without its quotes from the file, which may be a secret if the path was wrong.
type unquoted struct{ error }

// Error implements error.
func (e unquoted) Error() string {
	return regexp.MustCompile("`[^`]*`").ReplaceAllString(e.error.Error(), "this value")
}

// Unwrap returns the original error.
func (e unquoted) Unwrap() error { return e.error }

// Addr returns the address on which the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close closes the listener. Cancel the context of Serve to stop a running server.
func (s *Server) Close() error { return s.listener.Close() }

// Serve serves c until ctx ends, then closes all connections and returns nil. It returns an error if the server fails earlier.
func (s *Server) Serve(ctx context.Context, c Content) error {
	handler, err := s.handler(c)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	server := &http.Server{
		Handler:           served(handler),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		MaxHeaderBytes: maxHeader - headerSlack,
		ErrorLog:       slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
	server.SetKeepAlivesEnabled(false) // the oldest of maxClients connections should belong to a client that stalls
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		s.shut(server)
	})
	err = web.Serve(s.listener, server, &web.FlagConfig{WebConfigFile: &s.cfg.WebConfig}, s.toolkitLog())
	if !stop() {
		<-ended
		return nil
	}
	return errors.Join(fmt.Errorf("serving metrics: %w", err), server.Close())
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// served returns h, and keeps idle clients from replacing the connections of requests that h
// answers.
func served(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connlimit.Serve(r.Context().Value(connKey{}).(net.Conn))
		h.ServeHTTP(w, r)
	})
}

// shut waits up to closeTimeout for responses in progress, then closes all connections.
func (s *Server) shut(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = s.Close() // Shutdown closes the listener only after web.Serve has passed it on
	if server.Shutdown(ctx) != nil {
		_ = server.Close()
	}
}

// toolkitLog returns a logger that hides the exporter toolkit's messages about every start.
func (s *Server) toolkitLog() *slog.Logger {
	return slog.New(atLeast{s.cfg.Log.Handler(), slog.LevelWarn})
}

// atLeast is a slog.Handler with a minimum level.
type atLeast struct {
	slog.Handler
	level slog.Level
}

// Enabled implements slog.Handler.
func (a atLeast) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= a.level && a.Handler.Enabled(ctx, l)
}

// handler returns the handler of all pages.
func (s *Server) handler(c Content) (http.Handler, error) {
	registry := prometheus.NewRegistry()
	all := append([]prometheus.Collector{
		NewBuildInfo(c.Version), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}, c.Collectors...)
	for _, collector := range all {
		if err := registry.Register(collector); err != nil {
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
	}
	mux := http.NewServeMux()
	o := promhttp.HandlerOpts{ErrorLog: scrapeLogger{s.cfg.Log}, MaxRequestsInFlight: maxScrapes}
	if c.Partial {
		o.ErrorHandling = promhttp.ContinueOnError
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, o))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, "stuck", c.Alive) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, "not ready", c.Ready) })
	return http.MaxBytesHandler(mux, 0), nil // no request has a body
}

// scrapeLogger is the log of promhttp. It demotes encoding errors to debug: if a client disconnects, there is one for each
// remaining metric family, and any client can do that.
type scrapeLogger struct{ log *slog.Logger }

// Println implements promhttp.Logger.
func (l scrapeLogger) Println(v ...any) {
	level := slog.LevelWarn
	if len(v) > 0 && strings.HasPrefix(fmt.Sprint(v[0]), "error encoding") {
		level = slog.LevelDebug
	}
	l.log.Log(context.Background(), level, "answering a scrape failed", "error", strings.TrimSpace(fmt.Sprintln(v...)))
}

// answer writes the response to a health check, which succeeds if check is nil.
func answer(w http.ResponseWriter, failure string, check func() error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if check != nil {
		if err := check(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, failure+": "+err.Error()+"\n")
			return
		}
	}
	_, _ = io.WriteString(w, "ok\n")
}
