// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

// TestKilledAgentLeavesEndpointsOfPeers: the next agent renews the sessions of peers without a configured endpoint. The directory outlives the pod.
func TestKilledAgentLeavesEndpointsOfPeers(t *testing.T) {
	if got := daemonOptions(TunnelOptions{Name: "rwt-none", MTU: 1420}, slog.New(slog.DiscardHandler)).StateDir; got != string(uapi.DefaultDir) {
		t.Fatalf("the endpoints are kept in %q, want the directory of the control sockets", got)
	}
	if err := os.MkdirAll(endpointsDir, 0o755); err != nil {
		t.Skip(err)
	}
	left := filepath.Join(endpointsDir, "rwt-none.endpoints")
	if err := os.WriteFile(left, []byte("{}"), 0o600); err != nil {
		t.Skip(err)
	}
	inNamespace(t, func() error { return RemoveTunnel("rwt-none") })
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of a removed tunnel is still there: %v", err)
	}
}
