// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/cluster/agent"
)

func TestEmptyListenAddressOpensNoSocket(t *testing.T) {
	before := sockets(t)
	if err := agent.Serve(t.Context(), "", new(agent.Stats), "test", slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if n := sockets(t); n != before {
		t.Errorf("%d sockets, and %d before", n, before)
	}
}

// sockets returns the number of the process's sockets.
func sockets(t *testing.T) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if at, err := os.Readlink(f); err == nil && strings.HasPrefix(at, "socket:") {
			n++
		}
	}
	return n
}
