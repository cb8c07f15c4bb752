// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// settings returns those of the agent's flags.
func (c *Config) settings() mesh.Settings {
	return mesh.Settings{Port: c.Port, MTU: c.MTU}
}

// specSettings returns those of a RopewalkNode's spec.
func specSettings(s v1alpha1.NodeSpec) mesh.Settings {
	return mesh.Settings{Port: uint16(s.Port), MTU: int(s.MTU)}
}

// checkSettings returns an error for settings that this host cannot have. own is its node.
func (c *Config) checkSettings(s mesh.Settings, own mesh.Node) error {
	if s.MTU != 0 && s.MTU < mesh.MinMTU && c.carriesIPv6(own) {
		return fmt.Errorf("mtu is %d, and IPv6, which the tunnel of this node carries, needs %d", s.MTU, mesh.MinMTU)
	}
	return nil
}

// carriesIPv6 reports whether the tunnel of this host's node, own, carries IPv6 packets: those of pods, or between nodes.
func (c *Config) carriesIPv6(own mesh.Node) bool {
	return slices.ContainsFunc(own.PodCIDRs, isIPv6) || c.NodeEncryption.Enabled && slices.ContainsFunc(own.Addrs, netip.Addr.Is6)
}
