// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"net"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// underlayFlags are the flags for the path of data messages.
type underlayFlags struct {
	mode   config.UnderlayMode
	device string
	// fragments permits fragments of outer packets.
	fragments config.OuterFragments
}

// warn logs an underlay device that this host does not have. It may appear later.
func (u *underlayFlags) warn(log *slog.Logger) {
	if u.device != "" {
		if _, err := net.InterfaceByName(u.device); err != nil {
			log.Warn("underlay device does not exist, using UDP sockets until it appears", "device", u.device)
		}
	}
}

func (u *underlayFlags) add(cmd *cobra.Command) {
	cmd.Flags().TextVar(&u.mode, "underlay", config.UnderlayAuto,
		"sockets for data messages: `auto|udp|xdp`\n(xdp: AF_XDP where the device supports it; auto: AF_XDP where\n`ropewalk bench underlay` found it better)")
	cmd.Flags().StringVar(&u.device, "underlay-device", "",
		"network device for AF_XDP (default: the device of the route to most peers)")
	completeFlag(cmd, "underlay", "auto", "udp", "xdp")
	cmd.Flags().TextVar(&u.fragments, "outer-fragments", config.OuterFragments(false),
		"whether messages that exceed the path MTU may leave in fragments: `off|on`\n(off fits inner packets to the path, by fragments or ICMP errors)")
	completeFlag(cmd, "outer-fragments", "off", "on")
}
