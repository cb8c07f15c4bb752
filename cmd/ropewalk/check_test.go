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

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
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
			got := endpointWarnings(t.Context(), os.DirFS("/"), quick.Interface{Name: "rwk0", File: f}, silent)
			if left := strings.Contains(strings.Join(got, "\n"), "other endpoints"); len(got) != want || left != (peers > 1) {
				t.Errorf("%d peers: got %q, want %d warnings", peers, got, want)
			}
		})
	}
}

// TestCheckWarnsOfEndpointInAllowedIPs has a host with a default route and no IPv6.
func TestCheckWarnsOfEndpointInAllowedIPs(t *testing.T) {
	namespace.Enter(t)
	add := func(name string) {
		t.Helper()
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-end"}); err != nil {
			t.Skipf("needs veth links: %v", err)
		}
		expect.NoError(t, hostnet.SetLinkUp(name+"-end", 1420))
		expect.NoError(t, hostnet.SetLinkUp(name, 1420))
	}
	expect.NoError(t, hostnet.SetLinkUp("lo", 65536))
	add("uplink")
	expect.NoError(t, hostnet.AddAddress("uplink", netip.MustParsePrefix("192.0.2.1/24")))
	expect.NoError(t, netlink.RouteAdd(&netlink.Route{Gw: netip.MustParseAddr("192.0.2.254").AsSlice()}))
	check := func(allowed, endpoint, more, want string) {
		t.Helper()
		file := "[Interface]\n" + more + "[Peer]\nPublicKey = " + noise.PublicKey{2}.Base64() + "\nEndpoint = " + endpoint + ":51820\nAllowedIPs = " + allowed + "\n"
		i, err := openInterface("", writeConf(t, "rwk0", file))
		expect.NoError(t, err)
		got := strings.Join(endpointWarnings(t.Context(), os.DirFS("/"), i, conffile.NewResolver(conffile.ResolverConfig{})), "\n")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s in %s: got %q, want %q", endpoint, allowed, got, want)
		}
	}
	for _, tc := range []struct {
		allowed, endpoint, more, want string
	}{
		{"0.0.0.0/1, 128.0.0.0/1", "198.51.100.1", "", "the route to 128.0.0.0/1 takes messages to the endpoint 198.51.100.1"},
		{"0.0.0.0/0, 198.51.100.0/24, 198.51.0.0/16", "198.51.100.1", "", "the route to 198.51.100.0/24 takes"},
		{"::/1, 8000::/1", "[2001:db8::1]", "", "the route to ::/1 takes messages to the endpoint 2001:db8::1"},
		{"0.0.0.0/0, ::/0", "198.51.100.1", "", ""},
		{"10.0.0.0/8", "198.51.100.1", "", ""},
		{"10.0.0.0/8", "224.0.0.1", "", "no host has the address and port 224.0.0.1:51820"},
		{"10.0.0.0/8", "0.0.0.0", "", "no host has"},
		{"192.0.0.0/16", "192.0.2.7", "", ""},                                           // the uplink's network is more specific
		{"192.0.2.0/25, 0.0.0.0/1", "192.0.2.1", "", ""},                                // the host itself
		{"fe80::/10", "[fe80::1%uplink]", "", ""},                                       // by its link
		{"0.0.0.0/0", "198.51.100.1", "Table = main\n", "the route to 0.0.0.0/0 takes"}, // no policy routing
		{"128.0.0.0/1", "198.51.100.1", "Table = 254\n", "the route to 128.0.0.0/1 takes"},
		{"128.0.0.0/1", "198.51.100.1", "Table = off\n", ""},   // no routes
		{"128.0.0.0/1", "198.51.100.1", "Table = 7\n", ""},     // needs rules, which nobody knows
		{"128.0.0.0/1", "198.51.100.1", "FwMark = 0x10\n", ""}, // likewise
		{"128.0.0.0/1", "198.51.100.1", "PostUp = ip route add 198.51.100.1 via 192.0.2.254\n", ""},
	} {
		check(tc.allowed, tc.endpoint, tc.more, tc.want)
	}
	add("rwk0") // as if `up` had run
	expect.NoError(t, hostnet.AddRoute(hostnet.Route{Dst: netip.MustParsePrefix("128.0.0.0/1"), Link: "rwk0"}))
	check("0.0.0.0/1, 128.0.0.0/1", "198.51.100.1", "", "the route to 128.0.0.0/1 takes")
	expect.NoError(t, hostnet.AddRoute(hostnet.Route{Dst: netip.MustParsePrefix("198.51.100.1/32"), Link: "uplink"}))
	check("0.0.0.0/1, 128.0.0.0/1", "198.51.100.1", "", "")
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
