// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/ropewalk/ropewalk/pkg/adopt"
	"github.com/ropewalk/ropewalk/pkg/metrics"
)

// spreadMetrics are the flags of `spread attach --watch` that say whether and how metrics are served.
type spreadMetrics struct{ addr, config string }

func (m *spreadMetrics) add(flags *pflag.FlagSet) {
	flags.StringVar(&m.addr, "metrics", "", "with --watch: serve metrics to Prometheus at `host:port` (default: not)")
	flags.StringVar(&m.config, "metrics-config", "", "`file` of TLS and basic authentication for --metrics (the web config of Prometheus)")
}

// check finds flags that would have no effect.
func (m *spreadMetrics) check(watch bool) error {
	switch {
	case m.addr != "" && !watch:
		return errors.New("--metrics is served as long as the command runs: give --watch as well")
	case m.config != "" && m.addr == "":
		return errors.New("--metrics-config says how metrics are served: say where with --metrics HOST:PORT")
	}
	return nil
}

// during serves metrics while f runs, if that is wanted.
func (m *spreadMetrics) during(ctx context.Context, log *slog.Logger, f func() error) error {
	s, err := (&metricsFlags{addr: m.addr, config: m.config}).listen(log)
	if err != nil {
		return err
	}
	defer s.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.start(ctx, metrics.Content{Version: version, Collectors: []prometheus.Collector{metrics.NewSpreadCollector(spreadDevices)}})
	return f()
}

func spreadDevices(ctx context.Context) ([]adopt.DeviceStatus, error) {
	return new(adopt.Host).Status(ctx, "")
}
