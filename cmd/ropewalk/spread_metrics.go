// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/observe/metrics"
)

// duringSpread runs f, and meanwhile serves the metrics of spread if the flags ask for them.
func (m *metricsFlags) duringSpread(ctx context.Context, log *slog.Logger, f func() error) error {
	s, err := m.listen(log)
	if err != nil {
		return err
	}
	defer s.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.start(ctx, metrics.Content{Version: version, Collectors: []prometheus.Collector{metrics.NewSpreadCollector(new(spreader.Host).StatusForMetrics)}})
	return f()
}
