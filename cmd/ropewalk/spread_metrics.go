// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/observe/metrics"
)

// spreadMetrics are the flags of `spread attach --watch` for serving metrics.
type spreadMetrics struct{ addr, config string }

func (m *spreadMetrics) add(flags *pflag.FlagSet) {
	flags.StringVar(&m.addr, "metrics", "", "with --watch: serve Prometheus metrics at `host:port` (default: off)")
	flags.StringVar(&m.config, "metrics-config", "", "`file` for TLS and basic authentication of --metrics (Prometheus' web config)")
}

// check rejects flags that have no effect without another one.
func (m *spreadMetrics) check(watch bool) error {
	switch {
	case m.addr != "" && !watch:
		return errors.New("--metrics needs --watch: metrics are served while the command runs")
	case m.config != "" && m.addr == "":
		return errors.New("--metrics-config needs an address: add --metrics HOST:PORT")
	}
	return nil
}

// during runs f, and meanwhile serves metrics if the flags ask for them.
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

func spreadDevices(ctx context.Context) ([]spreader.DeviceStatus, error) {
	return new(spreader.Host).Status(ctx, "")
}
