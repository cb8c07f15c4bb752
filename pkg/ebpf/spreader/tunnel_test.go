// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestKernelTunnelIsFoundWithItsPeers attaches to a kernel tunnel.
func TestKernelTunnelIsFoundWithItsPeers(t *testing.T) {
	r := newRig(t)
	r.here.host.Tunnels = nil
	var peers []wgtypes.PeerConfig
	for _, endpoint := range []*net.UDPAddr{{IP: net.IPv4(192, 0, 2, 2), Port: port}, nil, {IP: net.ParseIP("2001:db8::7"), Port: 7}} {
		key, err := wgtypes.GeneratePrivateKey()
		expect.NoError(r, err)
		peers = append(peers, wgtypes.PeerConfig{PublicKey: key.PublicKey(), Endpoint: endpoint})
	}
	l := &netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: "wg0"}}
	if err := r.here.lab.Do(func() error { return netlink.LinkAdd(l) }); err != nil {
		t.Skipf("needs the kernel's WireGuard: %v", err)
	}
	r.here.do(func() error {
		client, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer client.Close()
		listen := port
		private, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			return err
		}
		if err := client.ConfigureDevice("wg0", wgtypes.Config{PrivateKey: &private, ListenPort: &listen, Peers: peers}); err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
	cfg := r.here.config()
	report := r.here.attach(cfg)
	if report.Tunnel != "wg0" || len(report.Peers) != 2 || len(report.Skipped) != 1 || len(report.Warnings) > 0 {
		t.Errorf("got report %+v, want Tunnel \"wg0\", len(Peers) 2, len(Skipped) 1, no Warnings", report)
	}
	if st := r.here.status(); st.Tunnels[0].Name != "wg0" || len(st.Problems) > 0 {
		t.Errorf("got status %+v, want Tunnels[0].Name \"wg0\", no Problems", st)
	}
	cfg.Device = "wg0"
	if _, err := r.here.try(cfg); err == nil {
		t.Error("the tunnel's own device is accepted")
	}
}

// newPeer returns a peer with this number of allowed IPs.
func newPeer(t *testing.T, allowed int) wgtypes.Peer {
	t.Helper()
	key, err := wgtypes.GeneratePrivateKey()
	expect.NoError(t, err)
	p := wgtypes.Peer{
		PublicKey: key.PublicKey(), PresharedKey: wgtypes.Key{7}, Endpoint: &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2).To4(), Port: port},
		PersistentKeepaliveInterval: 25 * time.Second, ProtocolVersion: 1,
	}
	for i := range allowed {
		p.AllowedIPs = append(p.AllowedIPs, net.IPNet{IP: net.IPv4(10, 0, byte(i>>8), byte(i)).To4(), Mask: net.CIDRMask(32, 32)})
	}
	return p
}

// TestRestartRemovesAndAddsInOneMessage: the peer is lost if a message removes it and no other follows.
func TestRestartRemovesAndAddsInOneMessage(t *testing.T) {
	for allowed, messages := range map[int]int{0: 1, 1: 1, 256: 1, 257: 2, 600: 3} {
		p := newPeer(t, allowed)
		first, rest := restartMessages(&p)
		if len(first) != 2 || !first[0].Remove || first[1].Remove || *first[1].PresharedKey != p.PresharedKey || len(rest) != messages-1 {
			t.Errorf("%d allowed IPs: got first %+v and %d more messages, want a removal and an addition, and %d", allowed, first, len(rest), messages-1)
		}
		sum := len(first[1].AllowedIPs)
		for _, m := range rest {
			sum += len(m[0].AllowedIPs)
			if !m[0].UpdateOnly || len(m[0].AllowedIPs) > maxAllowedIPs {
				t.Errorf("%d allowed IPs: got a message that may add the peer or that the library splits", allowed)
			}
		}
		if sum != allowed || len(first[1].AllowedIPs) > maxAllowedIPs {
			t.Errorf("got %d allowed IPs, %d in the first message, want %d", sum, len(first[1].AllowedIPs), allowed)
		}
	}
}

func TestRestartedPeerKeepsConfiguration(t *testing.T) {
	r := newRig(t)
	l := &netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: "wg0"}}
	if err := r.here.lab.Do(func() error { return netlink.LinkAdd(l) }); err != nil {
		t.Skipf("needs the kernel's WireGuard: %v", err)
	}
	want := newPeer(t, 600)
	r.here.do(func() error {
		client, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer client.Close()
		add := wgtypes.PeerConfig{
			PublicKey: want.PublicKey, PresharedKey: &want.PresharedKey, Endpoint: want.Endpoint,
			PersistentKeepaliveInterval: &want.PersistentKeepaliveInterval, AllowedIPs: want.AllowedIPs,
		}
		if err := client.ConfigureDevice("wg0", wgtypes.Config{Peers: []wgtypes.PeerConfig{add}}); err != nil {
			return err
		}
		key := want.PublicKey.String()
		retry, err := WireGuard{}.RestartPeer("wg0", key)
		if err != nil {
			return err
		}
		expect.NoError(t, retry()) // there is nothing left to do
		got, err := findPeer(client, "wg0", key)
		if err != nil || got == nil {
			return fmt.Errorf("the peer is gone: %w", err)
		}
		byAddress := cmpopts.SortSlices(func(a, b net.IPNet) bool { return a.String() < b.String() })
		if diff := cmp.Diff(want, *got, byAddress); diff != "" {
			t.Error(diff)
		}
		return nil
	})
}

func TestTunnelOfConvertsDevice(t *testing.T) {
	d := &wgtypes.Device{Name: "wg0", ListenPort: port, FirewallMark: 0xffffffff, Type: wgtypes.LinuxKernel}
	if diff := cmp.Diff(Tunnel{Name: "wg0", Port: port, FwMark: 0xffffffff}, tunnelOf(d)); diff != "" {
		t.Error(diff)
	}
}

func TestNamespaceWithoutTunnelsHasNone(t *testing.T) {
	r := newRig(t)
	r.here.do(func() error {
		tunnels, err := WireGuard{}.Tunnels()
		if len(tunnels) > 0 {
			t.Errorf("got %+v", tunnels)
		}
		return err
	})
}
