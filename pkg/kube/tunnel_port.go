// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/adopt"
)

// knownTunnelNames are how the WireGuard devices of Cilium, Calico, flannel and k3s are called.
func knownTunnelNames() []string {
	return []string{"cilium_wg0", "wireguard.cali", "wg-v6.cali", "flannel-wg", "flannel-wg-v6"}
}

// errAmbiguousTunnel says that the tunnel has to be named.
var errAmbiguousTunnel = errors.New("name the port of the tunnel to spread (--port)")

// tunnelPort returns the port of the tunnel: the one asked for, or that of the WireGuard that the cluster is found to have.
func (s *spreadReconciler) tunnelPort(asked uint16, tunnels []adopt.Tunnel) (uint16, error) {
	if port := cmp.Or(asked, s.cfg.Port); port != 0 {
		return port, nil
	}
	return clusterPort(tunnels)
}

// clusterPort takes the first tunnel that has one of the known names, or the only one that there is.
func clusterPort(tunnels []adopt.Tunnel) (uint16, error) {
	tunnels = slices.DeleteFunc(slices.Clone(tunnels), func(t adopt.Tunnel) bool { return t.Port == 0 || t.Userspace })
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
		return 0, fmt.Errorf("the node has no WireGuard device of the kernel's: %w", errAmbiguousTunnel)
	case 1:
		return tunnels[0].Port, nil
	default:
		return 0, fmt.Errorf("there are %s: %w", strings.Join(names, ", "), errAmbiguousTunnel)
	}
}
