// SPDX-License-Identifier: Apache-2.0

package uapi_test

import (
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

const stockConf = `[Interface]
PrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=
ListenPort = 51820

[Peer]
PublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=
AllowedIPs = 10.192.122.3/32, 10.192.124.1/24
Endpoint = [fe80::1%lo]:7
PersistentKeepalive = 25
`

func base64[K noise.Key](t *testing.T, s string) K {
	t.Helper()
	k, err := noise.ParseBase64[K](s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// conf writes a file for wg to read.
func conf(t *testing.T, text string) string {
	t.Helper()
	path := t.TempDir() + "/wg0.conf"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func stock(t *testing.T) (*uapitest.Device, *uapitest.Stock) {
	t.Helper()
	dev, dir := serve(t)
	return dev, uapitest.NewStock(t, dir)
}

func samplePeer(t *testing.T) config.Peer {
	t.Helper()
	return config.Peer{
		PublicKey: base64[noise.PublicKey](t, "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="),
		Endpoint:  &config.Endpoint{AddrPort: netip.MustParseAddrPort("[fe80::1]:7"), Scope: 1},
		Keepalive: new(uint16(25)), ReplaceAllowedIPs: true,
		AllowedIPs: []config.AllowedIP{
			{Prefix: netip.MustParsePrefix("10.192.122.3/32")}, {Prefix: netip.MustParsePrefix("10.192.124.0/24")},
		},
	}
}

func TestStockWGConfiguresTheDevice(t *testing.T) {
	dev, wg := stock(t)
	priv := base64[noise.PrivateKey](t, "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=")
	path := conf(t, stockConf)
	added := config.Device{PrivateKey: &priv, ListenPort: new(uint16(51820)), Peers: []config.Peer{samplePeer(t)}}
	replaced := added
	replaced.FwMark, replaced.ReplacePeers = new(uint32), true
	synced := replaced
	synced.ReplacePeers = false
	dev.SetStatus(config.Status{Peers: []config.PeerStatus{{PublicKey: samplePeer(t).PublicKey}}})
	for _, tc := range []struct {
		args []string
		want config.Device
	}{
		{[]string{"setconf", "wg0", path}, replaced},
		{[]string{"addconf", "wg0", path}, added},
		{[]string{"syncconf", "wg0", path}, synced},
		{[]string{"set", "wg0", "listen-port", "7", "fwmark", "0x8"}, config.Device{ListenPort: new(uint16(7)), FwMark: new(uint32(8))}},
		{[]string{"set", "wg0", "private-key", "/dev/null"}, config.Device{PrivateKey: new(noise.PrivateKey)}},
		{
			[]string{"set", "wg0", "peer", samplePeer(t).PublicKey.Base64(), "remove"},
			config.Device{Peers: []config.Peer{{PublicKey: samplePeer(t).PublicKey, Remove: true}}},
		},
	} {
		r := wg.Run(t, "", nil, tc.args...)
		if r.Code != 0 {
			t.Fatalf("wg %v: %s", tc.args, r.Stderr)
		}
		if diff := cmp.Diff([]config.Device{tc.want}, dev.TakeChanges(), exact); diff != "" {
			t.Errorf("wg %v:\n%s", tc.args, diff)
		}
	}
}

func TestStockWGReportsTheErrno(t *testing.T) {
	dev, wg := stock(t)
	for _, errno := range []syscall.Errno{syscall.EADDRINUSE, syscall.EINVAL, syscall.EPERM} {
		dev.Refuse(errno)
		r := wg.Run(t, "", nil, "set", "wg0", "listen-port", "7")
		if r.Code != 1 || !strings.Contains(strings.ToLower(r.Stderr), errno.Error()) {
			t.Errorf("%v: wg exits with %d and stderr %q", errno, r.Code, r.Stderr)
		}
	}
}

func TestStockWGSeesOnlyLiveSockets(t *testing.T) {
	dir := uapitest.NewDir(t)
	wg := uapitest.NewStock(t, dir)
	listen(t, dir, "live")
	stale(t, dir, "dead")
	if got := wg.Run(t, "", nil, "show", "interfaces").Stdout; got != "live\n" {
		t.Errorf("wg lists %q, want %q", got, "live\n")
	}
	stale(t, dir, "dead2")
	names, err := dir.Interfaces()
	if err != nil || len(names) != 1 {
		t.Error(names, err)
	}
}
