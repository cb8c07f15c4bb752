// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/ropewalk/ropewalk/pkg/metrics"
)

// metricsFlags are the flags that say whether and how metrics are served.
type metricsFlags struct {
	addr   string
	config string
	metrics.Options
}

// add adds the flags to those of `run` and `up`.
func (f *metricsFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.addr, "metrics", "", "serve metrics to Prometheus at `host:port`, with /healthz and /readyz (default: not)")
	flags.StringVar(&f.config, "metrics-config", "", "`file` of TLS and basic authentication for --metrics (the web config of Prometheus)")
	flags.TextVar(&f.PerPeer, "metrics-per-peer", metrics.PerPeerAuto,
		fmt.Sprintf("metrics of single peers: `auto|on|off` (auto: while there are at most %d)", metrics.MaxPeers))
	flags.BoolVar(&f.WireGuardNames, "metrics-wireguard-names", false,
		"show peers under the names of the common WireGuard exporter too")
}

// args are the arguments that tell `run` what f says beside the address. Files are named so that another directory does not matter.
func (f *metricsFlags) args() ([]string, error) {
	if f.addr == "" {
		return nil, f.check()
	}
	args := []string{"--metrics-per-peer", f.PerPeer.String()}
	if f.config != "" {
		path, err := filepath.Abs(f.config)
		if err != nil {
			return nil, fmt.Errorf("finding the metrics config: %w", err)
		}
		args = append(args, "--metrics-config", path)
	}
	if f.WireGuardNames {
		args = append(args, "--metrics-wireguard-names")
	}
	return args, nil
}

// check finds flags that would have no effect.
func (f *metricsFlags) check() error {
	if f.addr == "" && (f.config != "" || f.Options != metrics.Options{}) {
		return usageError{errors.New("the --metrics-* flags need an address: add --metrics HOST:PORT")}
	}
	return nil
}

// content is what there is to see of d.
func (f *metricsFlags) content(d metrics.Device) metrics.Content {
	return metrics.Content{
		Version:    version,
		Collectors: []prometheus.Collector{metrics.NewCollector(metrics.FromDevice(d, time.Now), f.Options)},
		Ready:      func() error { return metrics.Ready(d) },
		Pages:      livePages(d, f.Options),
	}
}

// metricsServer serves metrics of what is yet to be made. A nil one does nothing.
type metricsServer struct {
	server *metrics.Server // nil until the daemon that was taken over has given the address up
	config metrics.ServerConfig
	log    *slog.Logger
	ended  chan struct{} // nil until it serves
}

// server returns one that does not listen yet, nil if no metrics are wanted.
func (f *metricsFlags) server(log *slog.Logger) (*metricsServer, error) {
	if f.addr == "" {
		return nil, f.check()
	}
	c := metrics.ServerConfig{Addr: f.addr, WebConfig: f.config, Log: log}
	return &metricsServer{config: c, log: log}, nil
}

// listen returns a server, nil if no metrics are wanted.
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

// succeed returns a server that listens once the daemon that is to be taken over has given the address up, or now if it has another one.
// What else is wrong is known before that daemon is gone.
func (f *metricsFlags) succeed(log *slog.Logger) (*metricsServer, error) {
	s, err := f.listen(log)
	if errors.Is(err, syscall.EADDRINUSE) {
		return f.server(log)
	}
	return s, err
}

// await listens once the daemon that was taken over has given the address up. The tunnel is served already: that nobody can see it is
// no reason to stop.
func (s *metricsServer) await(ctx context.Context) (listens bool) {
	for tries := 0; ; tries++ {
		l, err := metrics.Listen(s.config)
		if err == nil {
			s.server = l
			return true
		}
		if tries == addressTries || !errors.Is(err, syscall.EADDRINUSE) {
			s.log.Error("metrics are not served", "error", err)
			return false
		}
		if tries == 0 {
			s.log.Info("waiting for the address of the metrics", "address", s.config.Addr)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(addressPause):
		}
	}
}

// An address is given up when the daemon before has answered its last scrape.
const (
	addressTries = 100
	addressPause = 100 * time.Millisecond
)

// start serves c until ctx ends.
func (s *metricsServer) start(ctx context.Context, c metrics.Content) {
	if s == nil {
		return
	}
	s.ended = make(chan struct{})
	listens := s.server != nil
	if listens { // said before the tunnel is served: who starts the daemon may look for it once that is
		s.logAddress()
	}
	go func() {
		defer close(s.ended)
		if !listens {
			if !s.await(ctx) {
				return
			}
			s.logAddress()
		}
		if err := s.server.Serve(ctx, c); err != nil {
			s.log.Error("metrics are no longer served", "error", err) // packets are still carried
		}
	}()
}

func (s *metricsServer) logAddress() {
	s.log.Info("serving metrics", "address", s.server.Addr().String())
}

// close waits for the server's end, if it was started, and gives its address up.
func (s *metricsServer) close() {
	if s == nil {
		return
	}
	if s.ended != nil {
		<-s.ended
		return
	}
	if s.server != nil {
		_ = s.server.Close() // it has answered nobody
	}
}

// withArgs returns a starter of daemons, as quick.Runner has, that gives them more arguments.
func withArgs(start func(string, []string) *exec.Cmd, more []string) func(string, []string) *exec.Cmd {
	return func(name string, flags []string) *exec.Cmd { return start(name, slices.Concat(flags, more)) }
}
