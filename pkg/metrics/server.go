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
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/net/netutil"
)

// What a client may cost. The server stands beside the packets, and whoever reaches its port may be nobody's friend.
const (
	headerTimeout = 5 * time.Second  // for a request's head
	readTimeout   = 10 * time.Second // for a whole request
	writeTimeout  = 30 * time.Second // for a request and its answer
	idleTimeout   = 2 * time.Minute  // between requests: more than a scrape interval
	maxHeader     = 16 << 10         // bytes
	maxClients    = 32               // connections
	maxScrapes    = 4                // answers in the making
	closeTimeout  = 2 * time.Second  // for answers under way when the server ends
	headerSlack   = 4 << 10          // bytes that net/http adds to maxHeader
)

// ServerConfig is what a Server is made of.
type ServerConfig struct {
	Addr      string // host:port; port 0 lets the kernel choose
	WebConfig string // file of TLS and basic authentication, in the exporter toolkit's form; empty for neither
	Log       *slog.Logger
}

// Content is what a Server answers with.
type Content struct {
	Version    string
	Collectors []prometheus.Collector
	Ready      func() error            // nil, or why the tunnel is not ready
	Pages      map[string]http.Handler // further ones, by http.ServeMux's patterns
}

// Server answers scrapes at /metrics, and health checks at /healthz and /readyz.
type Server struct {
	cfg      ServerConfig
	listener net.Listener
}

// Listen binds the address and reads the web config, so that what is wrong with either is known before anything else
// begins. errors.Is finds syscall.EADDRINUSE where somebody else has the address.
func Listen(cfg ServerConfig) (*Server, error) {
	if err := web.Validate(cfg.WebConfig); err != nil {
		return nil, fmt.Errorf("reading the metrics config %s: %w", cfg.WebConfig, unquoted{err})
	}
	l, err := net.Listen("tcp", cfg.Addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("serving metrics on %s: another program listens there: choose another port, or end it: %w", cfg.Addr, err)
	}
	if err != nil {
		return nil, fmt.Errorf("serving metrics on %s: %w", cfg.Addr, err)
	}
	return &Server{cfg: cfg, listener: netutil.LimitListener(l, maxClients)}, nil
}

// unquoted is an error of the YAML parser without what it quotes from the file: that may be a key, if it is another file.
type unquoted struct{ error }

// Error implements error.
func (e unquoted) Error() string {
	return regexp.MustCompile("`[^`]*`").ReplaceAllString(e.error.Error(), "this value")
}

// Unwrap returns the error as it was.
func (e unquoted) Unwrap() error { return e.error }

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close gives the address up. A server that serves is ended by its context instead.
func (s *Server) Close() error { return s.listener.Close() }

// Serve answers until ctx ends, then closes everything and returns nil. It returns an error if the server fails before.
func (s *Server) Serve(ctx context.Context, c Content) error {
	handler, err := s.handler(c)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader - headerSlack,
		ErrorLog:       slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		s.end(server)
	})
	err = web.Serve(s.listener, server, &web.FlagConfig{WebConfigFile: &s.cfg.WebConfig}, s.toolkitLog())
	if !stop() {
		<-ended
		return nil
	}
	return errors.Join(fmt.Errorf("serving metrics: %w", err), server.Close())
}

// end lets answers under way finish, but not for long.
func (s *Server) end(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = s.Close() // Shutdown does not know of the listener before web.Serve has given it over
	if server.Shutdown(ctx) != nil {
		_ = server.Close()
	}
}

// toolkitLog keeps to itself what the exporter toolkit says of every start.
func (s *Server) toolkitLog() *slog.Logger {
	return slog.New(atLeast{s.cfg.Log.Handler(), slog.LevelWarn})
}

// atLeast is a slog.Handler for what is not below a level.
type atLeast struct {
	slog.Handler
	level slog.Level
}

// Enabled implements slog.Handler.
func (a atLeast) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= a.level && a.Handler.Enabled(ctx, l)
}

// handler is all that the server answers.
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
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelWarn), MaxRequestsInFlight: maxScrapes,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, ready(c)) })
	for pattern, page := range c.Pages {
		mux.Handle(pattern, page)
	}
	return http.MaxBytesHandler(mux, 0), nil // no request has a body
}

func ready(c Content) error {
	if c.Ready == nil {
		return nil
	}
	return c.Ready()
}

// answer is that to a health check.
func answer(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "not ready: "+err.Error()+"\n")
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}
