// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"log/slog"
	"net"
	"syscall"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/cluster/agent"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestAddressInUseFailsStart: another process would answer the kubelet's probes, and be asked for this node's state.
func TestAddressInUseFailsStart(t *testing.T) {
	first, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	defer first.Close()
	if err := agent.Serve(t.Context(), first.Addr().String(), new(agent.Stats), "test", slog.New(slog.DiscardHandler)); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("got %v", err)
	}
}
