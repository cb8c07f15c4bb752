// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/ropewalk/ropewalk/pkg/observe/metrics"
)

// metricsFlags are the flags for serving metrics.
type metricsFlags struct {
	addr   string
	config string
	metrics.Options
}

// add adds the flags to the flags of `run` and `up`.
func (f *metricsFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.addr, "metrics", "", "serve Prometheus metrics, /healthz and /readyz at `host:port` (default: off)")
	flags.StringVar(&f.config, "metrics-config", "", "`file` for TLS and basic authentication of --metrics (Prometheus' web config)")
	flags.TextVar(&f.PerPeer, "metrics-per-peer", metrics.PerPeerAuto,
		fmt.Sprintf("metrics of single peers: `auto|on|off` (auto: on for at most %d peers)", metrics.MaxPeers))
	flags.BoolVar(&f.WireGuardNames, "metrics-wireguard-names", false,
		"also export peers under the names of prometheus_wireguard_exporter")
}

// args returns f, except the address, as arguments of `ropewalk run`. Paths are absolute: the daemon has another directory.
func (f *metricsFlags) args() ([]string, error) {
	if f.addr == "" {
		return nil, f.check()
	}
	var args []string
	if f.PerPeer != metrics.PerPeerAuto {
		args = append(args, "--metrics-per-peer", f.PerPeer.String())
	}
	if f.config != "" {
		path, err := filepath.Abs(f.config)
		if err != nil {
			return nil, fmt.Errorf("resolving the path of the metrics config: %w", err)
		}
		args = append(args, "--metrics-config", path)
	}
	if f.WireGuardNames {
		args = append(args, "--metrics-wireguard-names")
	}
	return args, nil
}

// check rejects flags that have no effect without an address.
func (f *metricsFlags) check() error {
	if f.addr == "" && (f.config != "" || f.Options != metrics.Options{}) {
		return usageError{errors.New("the --metrics-* flags need an address: add --metrics HOST:PORT")}
	}
	return nil
}

// content returns what the server serves for d.
func (f *metricsFlags) content(d metrics.Device) metrics.Content {
	return metrics.Content{
		Version:    version,
		Collectors: []prometheus.Collector{metrics.NewCollector(metrics.FromDevice(d, time.Now), f.Options)},
		Alive:      func() error { return metrics.Alive(d) },
		Ready:      func() error { return metrics.Ready(d) },
	}
}

// metricsServer is a metrics server that may be created before the tunnel. The methods of a nil metricsServer do nothing.
type metricsServer struct {
	server *metrics.Server // nil until the address is bound
	config metrics.ServerConfig
	log    *slog.Logger
	ended  chan struct{} // nil until start; closed when serving ends
}

// server returns a server that does not listen yet, nil if metrics are off.
func (f *metricsFlags) server(log *slog.Logger) (*metricsServer, error) {
	if f.addr == "" {
		return nil, f.check()
	}
	c := metrics.ServerConfig{Addr: f.addr, WebConfig: f.config, Log: log}
	return &metricsServer{config: c, log: log}, nil
}

// listen returns a server that listens, nil if metrics are off.
func (f *metricsFlags) listen(log *slog.Logger) (*metricsServer, error) {
	s, err := f.server(log)
	if s == nil {
		return nil, err
	}
	if s.server, err = metrics.Listen(s.config); err != nil {
		return nil, err
	}
	return s, nil
}

// listenOrWait returns a server that listens, or will listen once the old daemon, or another
// program, releases the address. Any other error is returned while the old daemon still serves the
// tunnel.
func (f *metricsFlags) listenOrWait(log *slog.Logger) (*metricsServer, error) {
	s, err := f.listen(log)
	if errors.Is(err, syscall.EADDRINUSE) {
		return f.server(log)
	}
	return s, err
}

// waitForAddress retries until the old daemon, or another program, releases the address. It reports whether the server listens. A failure is only
// logged: the tunnel runs already.
func (s *metricsServer) waitForAddress(ctx context.Context) (listens bool) {
	for attempt := 1; ; attempt++ {
		l, err := metrics.Listen(s.config)
		if err == nil {
			s.server = l
			return true
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			s.log.Error("listening for metrics failed, no metrics or health checks until this daemon restarts", "address", s.config.Addr, "error", err)
			return false
		}
		interval := addressRetryInterval
		switch attempt {
		case 1:
			s.log.Info("metrics address in use, waiting until another process releases it", "address", s.config.Addr)
		case addressAttempts:
			s.log.Error("another process keeps the address of the metrics, no metrics or health checks until it ends", "address", s.config.Addr, "error", err)
		}
		if attempt >= addressAttempts {
			interval = addressLongInterval
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(interval):
		}
	}
}

// The old daemon releases the address after it has answered its last scrape. Another program may keep it.
const (
	addressAttempts      = 100
	addressRetryInterval = 100 * time.Millisecond
	addressLongInterval  = 10 * time.Second
)

// start serves c until ctx ends.
func (s *metricsServer) start(ctx context.Context, c metrics.Content) {
	if s == nil {
		return
	}
	s.ended = make(chan struct{})
	listens := s.server != nil
	if listens { // logged before the tunnel is ready: scripts read the address from the log at that point
		s.logAddress()
	}
	go func() {
		defer close(s.ended)
		if !listens {
			if !s.waitForAddress(ctx) {
				return
			}
			s.logAddress()
		}
		if err := s.server.Serve(ctx, c); err != nil {
			s.log.Error("metrics server ended with an error, no metrics or health checks until this daemon restarts", "address", s.config.Addr, "error", err)
		}
	}()
}

func (s *metricsServer) logAddress() {
	s.log.Info("serving metrics", "address", s.server.Addr().String())
}

// close releases the address. If the server was started, close waits until its context ends it.
func (s *metricsServer) close() {
	if s == nil {
		return
	}
	if s.ended != nil {
		<-s.ended
		return
	}
	if s.server != nil {
		_ = s.server.Close() // no client was served
	}
}
