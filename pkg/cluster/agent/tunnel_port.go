// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
)

// knownTunnelNames returns the names of the WireGuard devices of Cilium, Calico, flannel and k3s.
func knownTunnelNames() []string {
	return []string{"cilium_wg0", "wireguard.cali", "wg-v6.cali", "flannel-wg", "flannel-wg-v6"}
}

// errAmbiguousTunnel asks for the tunnel's port.
var errAmbiguousTunnel = errors.New("set the port of the tunnel to spread (--port)")

// tunnelPort returns the requested port, or the port of the cluster's WireGuard device.
func (s *spreadReconciler) tunnelPort(requested uint16, tunnels []spreader.Tunnel) (uint16, error) {
	if port := cmp.Or(requested, s.cfg.Port); port != 0 {
		return port, nil
	}
	return clusterPort(tunnels)
}

// clusterPort returns the port of the first tunnel with a known name, or of the only tunnel.
func clusterPort(tunnels []spreader.Tunnel) (uint16, error) {
	tunnels = slices.DeleteFunc(slices.Clone(tunnels), func(t spreader.Tunnel) bool { return t.Port == 0 || t.Userspace })
	for _, name := range knownTunnelNames() {
		for _, t := range tunnels {
			if t.Name == name {
				return t.Port, nil
			}
		}
	}
	var names []string
	for _, t := range tunnels {
		names = append(names, fmt.Sprintf("%s on %d", t.Name, t.Port))
	}
	switch len(tunnels) {
	case 0:
		return 0, fmt.Errorf("the node has no kernel WireGuard device: %w", errAmbiguousTunnel)
	case 1:
		return tunnels[0].Port, nil
	default:
		return 0, fmt.Errorf("found several WireGuard devices (%s): %w", strings.Join(names, ", "), errAmbiguousTunnel)
	}
}
