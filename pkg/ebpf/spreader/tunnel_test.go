// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
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
		if err := client.ConfigureDevice("wg0", wgtypes.Config{ListenPort: &listen, Peers: peers}); err != nil {
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
