// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestCheckWarnsOfDNSWithoutResolvconf(t *testing.T) {
	f := &conffile.File{Interface: conffile.Interface{DNS: []conffile.Nameserver{{Addr: netip.MustParseAddr("192.0.2.53")}}}}
	if got := dnsWarnings(f, quick.Tools{}); len(got) != 1 || !strings.Contains(got[0], "resolvconf is not installed") {
		t.Errorf("got %q, want a warning", got)
	}
	if got := dnsWarnings(f, quick.Tools{Resolvconf: "/sbin/resolvconf"}); len(got) > 0 {
		t.Errorf("with resolvconf: got %q", got)
	}
	if got := dnsWarnings(new(conffile.File), quick.Tools{}); len(got) > 0 {
		t.Errorf("without DNS: got %q", got)
	}
}

// TestCheckUsesFilesOfItsRoot has a routing table that only the host under the root has.
func TestCheckUsesFilesOfItsRoot(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "etc/iproute2/rt_tables")
	expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	expect.NoError(t, os.WriteFile(path, []byte("7 of-the-root\n"), 0o600))
	f := &conffile.File{Interface: conffile.Interface{Table: "of-the-root"}}
	if got := hostWarnings(os.DirFS(root), f); len(got) > 0 {
		t.Errorf("got %q, want none", got)
	}
	if got := hostWarnings(os.DirFS(t.TempDir()), f); len(got) != 1 || !strings.Contains(got[0], "Table") {
		t.Errorf("in an empty root: got %q, want a warning of the table", got)
	}
}

// TestCheckReportsEndpointsLeftAtTimeout has a name server that never answers.
func TestCheckReportsEndpointsLeftAtTimeout(t *testing.T) {
	silent := func(ctx context.Context, _ string) (config.Endpoint, error) {
		<-ctx.Done()
		return config.Endpoint{}, ctx.Err()
	}
	for peers, want := range []int{0, 1, 2, 2} { // one of the peer at which the time ends, one of all further peers
		synctest.Test(t, func(t *testing.T) {
			f := new(conffile.File)
			for range peers {
				f.Peers = append(f.Peers, conffile.Peer{Endpoint: "peer.example:51820"})
			}
			got := endpointWarnings(t.Context(), f, silent)
			if left := strings.Contains(strings.Join(got, "\n"), "other endpoints"); len(got) != want || left != (peers > 1) {
				t.Errorf("%d peers: got %q, want %d warnings", peers, got, want)
			}
		})
	}
}

func TestCheckEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cmd := newCheckCmd()
	cmd.SetContext(ctx)
	peer := "[Interface]\nPrivateKey = " + noise.PrivateKey{1}.Base64() + "\n[Peer]\nPublicKey = " + noise.PublicKey{2}.Base64() + "\nEndpoint = peer.example:51820\n"
	stdout, _, err := execute(t, cmd, "", writeConf(t, "rwk0", peer))
	if stdout != "" || !errors.Is(err, context.Canceled) {
		t.Errorf("got %q, error %v, want only context.Canceled", stdout, err)
	}
}
