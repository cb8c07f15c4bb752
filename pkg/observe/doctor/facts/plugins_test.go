// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

func TestPluginsAreRecognisedByDeviceName(t *testing.T) {
	got := pluginDevices([]hostnet.Link{
		{Name: "eth0", Kind: "device"},
		{Name: "cilium_wg0", Kind: "wireguard"},
		{Name: "wg0", Kind: "wireguard"},
		{Name: "flannel-wg", Kind: "dummy"},
		{Name: "wg-v6.cali", Kind: "wireguard"},
	})
	want := []Plugin{
		{Product: "Cilium", Device: "cilium_wg0", Port: Known(uint16(51871))},
		{Product: "Calico", Device: "wg-v6.cali", Port: Known(uint16(51821))},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPluginPortAndLowerDevicesComeFromKernel(t *testing.T) {
	peer := func(addr string) spreader.TunnelPeer {
		return spreader.TunnelPeer{Endpoint: netip.AddrPortFrom(netip.MustParseAddr(addr), 4444)}
	}
	tunnels := []spreader.Tunnel{{Name: "flannel-wg", Port: 4444, Peers: []spreader.TunnelPeer{
		peer("192.0.2.1"), peer("198.51.100.1"), {}, peer("192.0.2.2"),
	}}}
	towards := func(a netip.Addr, _, _ uint32) string {
		return map[string]string{"192.0.2.1": "eth1", "192.0.2.2": "eth1", "198.51.100.1": "eth0"}[a.String()]
	}
	p := Plugin{Device: "flannel-wg", Port: Known(uint16(51820))}
	p.setKernelState(tunnels, nil, towards)
	want := Plugin{Device: "flannel-wg", Port: Known(uint16(4444)), Lower: []string{"eth0", "eth1"}}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Error(diff)
	}
	p = Plugin{Device: "flannel-wg", Port: Known(uint16(51820))}
	p.setKernelState(nil, unix.EPERM, towards)
	want = Plugin{Device: "flannel-wg", Port: Result[uint16]{Value: 51820, Err: unix.EPERM}}
	if diff := cmp.Diff(want, p, cmpopts.EquateErrors()); diff != "" {
		t.Error(diff)
	}
}

// TestPluginLowerDevicesExcludeTunnels: with policy routing by mark, unmarked packets go into the tunnel, where attach refuses to spread.
func TestPluginLowerDevicesExcludeTunnels(t *testing.T) {
	peer := func(addr string) spreader.TunnelPeer {
		return spreader.TunnelPeer{Endpoint: netip.MustParseAddrPort(addr)}
	}
	const mark = 0x100000
	tunnels := []spreader.Tunnel{
		{Name: "wg0", Port: 7},
		{Name: "wireguard.cali", Port: 51820, FwMark: mark, Peers: []spreader.TunnelPeer{
			peer("192.0.2.1:51820"), peer("198.51.100.1:51820"), peer("203.0.113.1:51820"), peer("203.0.113.2:51820"),
		}},
	}
	towards := func(a netip.Addr, _, m uint32) string {
		return map[netip.Addr]map[uint32]string{
			netip.MustParseAddr("192.0.2.1"):    {0: "wireguard.cali", mark: "eth0"},
			netip.MustParseAddr("198.51.100.1"): {mark: "wireguard.cali"},
			netip.MustParseAddr("203.0.113.1"):  {mark: "wg0"},
			netip.MustParseAddr("203.0.113.2"):  {mark: "lo"},
		}[a][m]
	}
	p := Plugin{Device: "wireguard.cali"}
	p.setKernelState(tunnels, nil, towards)
	if diff := cmp.Diff([]string{"eth0"}, p.Lower); diff != "" {
		t.Error(diff)
	}
}

func TestSpreadOnMatchesPort(t *testing.T) {
	tunnels := func(port uint16) []spreader.TunnelStatus { return []spreader.TunnelStatus{{Port: port}} }
	attached, detached := spreader.HookStatus{State: "attached"}, spreader.HookStatus{State: "detached"}
	got := spreadOn([]spreader.DeviceStatus{
		{Device: "eth0", Spread: attached, Tunnels: tunnels(51871)},
		{Device: "eth1", Spread: detached, Tunnels: tunnels(51871)},
		{Device: "eth2", Spread: attached, Tunnels: tunnels(51820)},
	}, 51871)
	if diff := cmp.Diff([]string{"eth0"}, got); diff != "" {
		t.Error(diff)
	}
}
