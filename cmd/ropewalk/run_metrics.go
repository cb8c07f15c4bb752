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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/ropewalk/ropewalk/pkg/device"
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

// args are the arguments that tell `run` what f says. Files are named so that another directory does not matter.
func (f *metricsFlags) args() ([]string, error) {
	if f.addr == "" {
		return nil, f.check()
	}
	args := []string{"--metrics", f.addr, "--metrics-per-peer", f.PerPeer.String()}
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
		return usageError{errors.New("the --metrics-… flags say how metrics are served: say where with --metrics HOST:PORT")}
	}
	return nil
}

// metricsServer serves the metrics of a device that is yet to be made. A nil one does nothing.
type metricsServer struct {
	*metrics.Server
	options metrics.Options
	log     *slog.Logger
	ended   chan struct{} // nil until it serves
}

// listen returns a server, nil if no metrics are wanted.
func (f *metricsFlags) listen(log *slog.Logger) (*metricsServer, error) {
	if f.addr == "" {
		return nil, f.check()
	}
	s, err := metrics.Listen(metrics.ServerConfig{Addr: f.addr, WebConfig: f.config, Log: log})
	if err != nil {
		return nil, err
	}
	return &metricsServer{Server: s, options: f.Options, log: log}, nil
}

// start serves the metrics of d until ctx ends.
func (s *metricsServer) start(ctx context.Context, d *device.Device) {
	if s == nil {
		return
	}
	s.log.Info("serving metrics", "address", s.Addr())
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		if err := s.Serve(ctx, s.content(d)); err != nil {
			s.log.Error("metrics are no longer served", "error", err) // packets are still carried
		}
	}()
}

func (s *metricsServer) content(d *device.Device) metrics.Content {
	return metrics.Content{
		Version:    version,
		Collectors: []prometheus.Collector{metrics.NewCollector(metrics.FromDevice(d, time.Now), s.options)},
		Ready:      func() error { return metrics.Ready(d) },
		Pages:      livePages(d, s.options),
	}
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
	_ = s.Close() // it has answered nobody
}

// withArgs returns a starter of daemons, as quick.Runner has, that gives them more arguments.
func withArgs(start func(string, []string) *exec.Cmd, more []string) func(string, []string) *exec.Cmd {
	return func(name string, flags []string) *exec.Cmd { return start(name, slices.Concat(flags, more)) }
}
