// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/adopt"
	"github.com/ropewalk/ropewalk/pkg/datapath/hook"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
)

// Plugin is a WireGuard device that a network plugin of Kubernetes has made.
type Plugin struct {
	Product string // the plugin's name
	Device  string
	Port    Answer[uint16] // that it listens on; who may not ask the kernel is told the plugin's usual one
	Lower   []string       // devices by which its peers are reached
	// Spread are the devices on which its flows are spread.
	Spread Answer[[]string]
}

// product is what is known of a plugin: how it names its devices, and where they listen unless told otherwise.
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

// k3s has flannel in it. This directory is there while it runs.
const k3s = "run/k3s"

// plugins finds those of the thread's network namespace.
func (s source) plugins(ctx context.Context) ([]Plugin, error) {
	links, err := hostnet.Links()
	if err != nil {
		return nil, err
	}
	found := named(links)
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
	tunnels, err := adopt.WireGuard{}.Tunnels()
	for i := range found {
		found[i].configured(tunnels, err, hostnet.DeviceTowards)
	}
	spread, err := new(adopt.Host).Status(ctx, "")
	for i := range found {
		found[i].Spread = Answer[[]string]{Value: spreadOn(spread, found[i].Port.Value), Err: err}
	}
	return found, nil
}

// named are the devices that plugins have made, as far as their names tell.
func named(links []hostnet.Link) []Plugin {
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

// configured takes over what the kernel tells of the device. What leads back into a tunnel, or to this host, is no device to spread on.
func (p *Plugin) configured(tunnels []adopt.Tunnel, err error, towards func(to netip.Addr, mark uint32) string) {
	p.Port.Err = err
	tunnel := func(name string) int {
		return slices.IndexFunc(tunnels, func(t adopt.Tunnel) bool { return t.Name == name })
	}
	i := tunnel(p.Device)
	if i < 0 {
		return
	}
	p.Port = Known(tunnels[i].Port)
	peers := tunnels[i].Peers
	for _, peer := range peers[:min(len(peers), maxPeers)] {
		device := towards(peer.Endpoint.Addr(), tunnels[i].Mark)
		if device != "" && device != "lo" && tunnel(device) < 0 && !slices.Contains(p.Lower, device) {
			p.Lower = append(p.Lower, device)
		}
	}
	slices.Sort(p.Lower)
}

// spreadOn are the devices on which the flows of the tunnel with that port are spread.
func spreadOn(devices []adopt.DeviceStatus, port uint16) []string {
	var names []string
	for i := range devices {
		d := &devices[i]
		if d.Spread.State == hook.Attached.String() && slices.ContainsFunc(d.Tunnels, func(t adopt.TunnelStatus) bool { return t.Port == port }) {
			names = append(names, d.Device)
		}
	}
	return names
}
