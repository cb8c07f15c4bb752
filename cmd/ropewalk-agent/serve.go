// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"

	"github.com/ropewalk/ropewalk/pkg/cluster/agent"
)

// serve serves probes and metrics at an address until ctx ends. With an empty address, it does nothing. An address that another process
// has is an error: that process would answer the kubelet's probes.
func serve(ctx context.Context, at string, c agent.Content) error {
	if at == "" { // net would listen on a random port of all addresses
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
	if err != nil {
		return fmt.Errorf("listening for health checks and metrics on %s: %w", at, err)
	}
	go func() {
		if err := agent.Serve(ctx, l, c); err != nil {
			c.Log.Error("serving probes and metrics failed, not answering them any more", "address", at, "error", err)
		}
	}()
	return nil
}
