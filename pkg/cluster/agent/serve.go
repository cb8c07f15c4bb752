// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"

	"github.com/ropewalk/ropewalk/pkg/observe/metrics"
)

// Serve answers the kubelet's probes and Prometheus at an address, in a goroutine, until ctx ends. With an empty address, it does
// nothing. An address that another process has is an error: that process would answer the probes.
func Serve(ctx context.Context, at string, s *Stats, version string, log *slog.Logger) error {
	if at == "" { // net would listen on a random port of all addresses
		return nil
	}
	server, err := metrics.Listen(metrics.ServerConfig{Addr: at, Log: log})
	if err != nil {
		return err
	}
	go func() {
		if err := server.Serve(ctx, contentOf(s, version)); err != nil {
			log.Error("serving probes and metrics failed, not answering them any more", "address", at, "error", err)
		}
	}()
	return nil
}

// contentOf returns the answers. /healthz fails only if a reconcile is stuck: a cluster whose API
// is unreachable must not lose its tunnels as well. /readyz succeeds while the last reconcile did
// and the peers answer. /metrics has the agent's counters, and in spread mode also the counters of
// `ropewalk spread`.
func contentOf(s *Stats, version string) metrics.Content {
	return metrics.Content{Version: version, Collectors: s.collectors(), Alive: s.alive, Ready: s.ready, Partial: true}
}
