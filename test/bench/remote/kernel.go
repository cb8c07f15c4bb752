// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"fmt"
	"net"
	"net/netip"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// configureKernel configures an interface of the in-kernel WireGuard in the calling thread's namespace. Of d it takes the keys, the
// port, endpoints and allowed IPs.
func configureKernel(iface string, d *config.Device) error {
	c, err := wgctrl.New()
	if err != nil {
		return fmt.Errorf("opening a socket for the in-kernel WireGuard: %w", err)
	}
	defer c.Close()
	key, port := wgtypes.Key(*d.PrivateKey), int(*d.ListenPort)
	k := wgtypes.Config{PrivateKey: &key, ListenPort: &port, ReplacePeers: d.ReplacePeers}
	for _, p := range d.Peers {
		kp := wgtypes.PeerConfig{PublicKey: wgtypes.Key(p.PublicKey)}
		if p.Endpoint != nil {
			kp.Endpoint = net.UDPAddrFromAddrPort(p.Endpoint.AddrPort)
		}
		for _, a := range p.AllowedIPs {
			kp.AllowedIPs = append(kp.AllowedIPs, ipNet(a.Prefix))
		}
		k.Peers = append(k.Peers, kp)
	}
	return c.ConfigureDevice(iface, k)
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
