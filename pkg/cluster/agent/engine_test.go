// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
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

// TestNextAgentOpensItsPortOnce: a killed agent leaves an interface that is up. Sockets of another port would be opened first, and closing those takes the kernel
// some 20 ms, in which the tunnel carries nothing.
func TestNextAgentOpensItsPortOnce(t *testing.T) {
	const name = "rwt-port"
	key, err := noise.NewPrivateKey(rand.Reader)
	expect.NoError(t, err)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	expect.NoError(t, err)
	defer log.Close()
	port := uint16(51820)
	o := TunnelOptions{Name: name, MTU: 1420, Lanes: 1, Initial: config.Device{PrivateKey: &key, ListenPort: &port}}
	inNamespace(t, func() error {
		first, err := OpenPersistentEngine(o, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		first.Close() // the interface stays
		if err != nil {
			return err
		}
		next, err := OpenPersistentEngine(o, slog.New(slog.NewTextHandler(log, nil)))
		if err != nil {
			return err
		}
		defer next.Close()
		var line string
		expect.Eventually(t, "the port is open", func() bool {
			text, _ := os.ReadFile(log.Name())
			_, line, _ = strings.Cut(string(text), `msg="interface up" `)
			return strings.Contains(line, "\n")
		})
		if line, _, _ = strings.Cut(line, "\n"); !strings.Contains(line, "port=51820") {
			t.Errorf("the engine opens another port first: %s", line)
		}
		return nil
	})
}
