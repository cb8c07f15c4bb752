// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

// settings returns those of the agent's flags.
func (c *Config) settings() mesh.Settings {
	return mesh.Settings{Mode: c.Mode, Port: c.Port, MTU: c.MTU}
}

// specSettings returns those of a RopewalkNode's spec.
func specSettings(s v1alpha1.NodeSpec) mesh.Settings {
	return mesh.Settings{Mode: mesh.Mode(s.Mode), Port: uint16(s.Port), MTU: int(s.MTU)}
}

// checkSettings returns an error for settings that this host cannot have. own is its node.
func (c *Config) checkSettings(s mesh.Settings, own mesh.Node) error {
	switch {
	case s.MTU != 0 && s.MTU < mesh.MinMTU && c.carriesIPv6(own):
		return fmt.Errorf("mtu is %d, and IPv6, which the tunnel of this node carries, needs %d", s.MTU, mesh.MinMTU)
	case s.Mode != "" && s.Mode != c.Mode:
		if err := c.canRun(s.Mode); err != nil {
			return fmt.Errorf("mode %s: %w (set modeOverride in the chart)", s.Mode, err)
		}
	}
	return nil
}

// carriesIPv6 reports whether the tunnel of this host's node, own, carries IPv6 packets: those of pods, or between nodes.
func (c *Config) carriesIPv6(own mesh.Node) bool {
	return slices.ContainsFunc(own.PodCIDRs, isIPv6) || c.NodeEncryption.Enabled && slices.ContainsFunc(own.Addrs, netip.Addr.Is6)
}

// errNoPerfmon means that the process may not load the programs of mode spread.
var errNoPerfmon = errors.New("the agent lacks CAP_PERFMON")

// canRunMode returns an error if the process lacks what a mode needs and another mode may not need.
func canRunMode(m mesh.Mode) error {
	if m == mesh.ModeMesh {
		_, err := os.Stat(string(uapi.DefaultDir))
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return fmt.Errorf("reading the process's capabilities: %w", err)
	}
	has := func(c int) bool { return have[c/32].Effective&(1<<(c%32)) != 0 }
	if !has(unix.CAP_PERFMON) && !has(unix.CAP_SYS_ADMIN) {
		return errNoPerfmon
	}
	return nil
}
