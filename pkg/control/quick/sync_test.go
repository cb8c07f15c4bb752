// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestDetailsAreDifferencesToDeviceAfterwards: A has 10.7.0.0/16, and B has none.
func TestDetailsAreDifferencesToDeviceAfterwards(t *testing.T) {
	const (
		a = "[Peer]\nPublicKey = $A\nEndpoint = 192.0.2.1:51820\nAllowedIPs = 10.7.0.0/16\n"
		b = "[Peer]\nPublicKey = $B\n"
	)
	key, err := noise.ParseBase64[noise.PrivateKey](testPrivateKey)
	expect.NoError(t, err)
	self := "[Peer]\nPublicKey = " + key.Public().Base64() + "\nAllowedIPs = 10.5.0.0/16\n"
	for _, tt := range []struct {
		name, file string
		want       []string
	}{
		{"nothing", a + b, nil},
		{"the last peer gets a prefix", a + b + "AllowedIPs = 10.7.0.0/16\n", []string{"A: allowed IP 10.7.0.0/16 removed", "B: allowed IP 10.7.0.0/16 added"}},
		{"the last peer has a prefix", b + "AllowedIPs = 10.7.0.0/16\n" + a, nil},
		{"a peer with the device's key", a + b + self, nil},
		{"two sections of a peer", "[Peer]\nPublicKey = $A\nPersistentKeepalive = 25\nAllowedIPs = 10.6.0.0/16\n" + a + b, []string{"A: persistent keepalive 25 s"}},
		{"a removed prefix", strings.Replace(a, "10.7.0.0/16", "-10.7.0.0/16, +10.8.0.0/16", 1) + b, []string{"A: allowed IP 10.7.0.0/16 removed", "A: allowed IP 10.8.0.0/16 added"}},
		{"4-in-6 form", strings.Replace(a, "192.0.2.1", "[::ffff:192.0.2.1]", 1) + b, nil},
		{"link-local endpoint", strings.Replace(a, "192.0.2.1", "[fe80::1%lo]", 1) + b, []string{"A: endpoint [fe80::1%lo]:51820"}},
		{"names", a + b + "# Name = desk\nEndpoint = desk.test:1\n", []string{`B: name "desk"`, "B: endpoint 192.0.2.9:1", `B: endpoint name "desk.test:1"`}},
		{"no peer", "", []string{"A: removed", "B: removed"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := config.Status{PrivateKey: key, Peers: testPeers(t)}
			dev := resync(t, tt.file, before.Peers)
			for _, key := range []*noise.PrivateKey{dev.PrivateKey, nil} { // nil: from a credential, not from the file
				dev.PrivateKey = key
				got := syncDevice{configure{dev: dev}, before, deviceReport{Settings: map[string]string{}}}.details()
				for n := range got {
					got[n] = strings.NewReplacer("peer "+testPeerA, "A", "peer "+testPeerB, "B").Replace(got[n])
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

// testPeers returns A with an endpoint and a prefix, and B.
func testPeers(t *testing.T) (peers []config.PeerStatus) {
	for _, text := range []string{testPeerA, testPeerB} {
		key, err := noise.ParseBase64[noise.PublicKey](text)
		expect.NoError(t, err)
		peers = append(peers, config.PeerStatus{PublicKey: key})
	}
	peers[0].Endpoint.AddrPort = netip.MustParseAddrPort("192.0.2.1:51820")
	peers[0].AllowedIPs = []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}
	return peers
}

// resync returns the Resync of a file with these peers. All names have the address 192.0.2.9.
func resync(t *testing.T, peers string, now []config.PeerStatus) config.Device {
	text := strings.NewReplacer("$KEY", testPrivateKey, "$A", testPeerA, "$B", testPeerB).Replace("[Interface]\nPrivateKey = $KEY\n" + peers)
	file, err := conffile.Parse("wg0.conf", strings.NewReader(text), conffile.Quick)
	expect.NoError(t, err)
	dev, err := Resync(t.Context(), file, conffile.NewResolver(conffile.ResolverConfig{IP: func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("192.0.2.9")}, nil
	}}), now)
	expect.NoError(t, err)
	return dev
}

// TestResyncOfSeveralSectionsKeepsSettings: one of two sections has the settings of a peer. None of them changes, not even for a moment.
func TestResyncOfSeveralSectionsKeepsSettings(t *testing.T) {
	now := testPeers(t)
	now[0].Name, now[0].PresharedKey, now[0].Keepalive = "desk", noise.PresharedKey{1}, 25
	full := "[Peer]\n# Name = desk\nPublicKey = $A\nPersistentKeepalive = 25\nPresharedKey = " + now[0].PresharedKey.Base64() + "\n"
	const empty, other = "[Peer]\nPublicKey = $A\n", "[Peer]\nPublicKey = $B\n"
	for _, text := range []string{full + empty + other, empty + full + other} {
		for _, p := range resync(t, text, now).Peers {
			if p.Name != nil && *p.Name == "" || p.PresharedKey != nil && p.PresharedKey.IsZero() || p.Keepalive != nil && *p.Keepalive == 0 {
				t.Errorf("got %+v of:\n%s", p, text)
			}
		}
	}
}
