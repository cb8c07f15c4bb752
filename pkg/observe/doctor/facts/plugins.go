// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// Plugin is a WireGuard device of a Kubernetes network plugin (CNI).
type Plugin struct {
	Product string // the plugin's name
	Device  string
	Port    Result[uint16] // listen port; the plugin's default without CAP_NET_ADMIN
	Lower   []string       // devices on the routes to its peers
	// Spread are the devices where its flows are spread.
	Spread Result[[]string]
}

// product holds a plugin's device name and default listen port.
type product struct {
	name, device string
	port         uint16
}

// products are Cilium (Documentation/security/network/encryption-wireguard.rst), Calico (felix's WireguardInterfaceName),
// flannel (backend wireguard) and Kilo.
func products() []product {
	return []product{
		{"Cilium", "cilium_wg0", 51871},
		{"Calico", "wireguard.cali", 51820},
		{"Calico", "wg-v6.cali", 51821},
		{"flannel", "flannel-wg", 51820},
		{"flannel", "flannel-wg-v6", 51821},
		{"Kilo", "kilo0", 51820},
	}
}

// k3s is a directory that exists while k3s runs. k3s includes flannel.
const k3s = "run/k3s"

// plugins lists the plugins' devices in the thread's network namespace.
func (s source) plugins(ctx context.Context) ([]Plugin, error) {
	links, err := hostnet.Links()
	if err != nil {
		return nil, err
	}
	found := pluginDevices(links)
	if len(found) == 0 {
		return nil, nil
	}
	if _, err := s.names(k3s); err == nil {
		for i := range found {
			if found[i].Product == "flannel" {
				found[i].Product = "k3s (flannel)"
			}
		}
	}
	tunnels, err := spreader.WireGuard{}.Tunnels()
	for i := range found {
		found[i].setKernelState(tunnels, err, hostnet.EgressDeviceName)
	}
	spread, err := new(spreader.Host).Status(ctx, "")
	for i := range found {
		found[i].Spread = Result[[]string]{Value: spreadOn(spread, found[i].Port.Value), Err: err}
	}
	return found, nil
}

// pluginDevices returns the devices that have the names of plugins' devices.
func pluginDevices(links []hostnet.Link) []Plugin {
	var found []Plugin
	for _, l := range links {
		for _, p := range products() {
			if l.Name == p.device && l.Kind == "wireguard" {
				found = append(found, Plugin{Product: p.name, Device: l.Name, Port: Known(p.port)})
			}
		}
	}
	return found
}

// setKernelState sets port and lower devices from the kernel's state. It leaves out routes into a tunnel and to this host.
func (p *Plugin) setKernelState(tunnels []spreader.Tunnel, err error, towards func(to netip.Addr, scope, mark uint32) string) {
	p.Port.Err = err
	tunnel := func(name string) int {
		return slices.IndexFunc(tunnels, func(t spreader.Tunnel) bool { return t.Name == name })
	}
	i := tunnel(p.Device)
	if i < 0 {
		return
	}
	p.Port = Known(tunnels[i].Port)
	peers := tunnels[i].Peers
	for _, peer := range peers[:min(len(peers), maxPeers)] {
		device := towards(peer.Endpoint.Addr(), 0, tunnels[i].FwMark)
		if device != "" && device != "lo" && tunnel(device) < 0 && !slices.Contains(p.Lower, device) {
			p.Lower = append(p.Lower, device)
		}
	}
	slices.Sort(p.Lower)
}

// spreadOn returns the devices that spread the flows of the tunnel with this port.
func spreadOn(devices []spreader.DeviceStatus, port uint16) []string {
	var names []string
	for i := range devices {
		d := &devices[i]
		if d.Spread.State == hook.Attached.String() && slices.ContainsFunc(d.Tunnels, func(t spreader.TunnelStatus) bool { return t.Port == port }) {
			names = append(names, d.Device)
		}
	}
	return names
}
