// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// underlayFlags are the flags for the path of data messages.
type underlayFlags struct {
	mode   config.UnderlayMode
	device string
	cpus   config.ReceiveCPUs
	// fragments permits fragments of outer packets.
	fragments config.OuterFragments
}

// check rejects combinations that are not possible.
func (u *underlayFlags) check() error {
	if err := config.CheckReceiveCPUs(u.mode, u.cpus); err != nil {
		return usageError{fmt.Errorf("--rx-cpus %v: %w", u.cpus, err)}
	}
	return nil
}

// warn logs an underlay device and receive CPUs that this host does not have. The device may appear later.
func (u *underlayFlags) warn(log *slog.Logger) {
	if u.device != "" {
		if _, err := net.InterfaceByName(u.device); err != nil {
			log.Warn("underlay device does not exist, using UDP sockets until it appears", "device", u.device)
		}
	}
	if absent := absentCPUs(os.DirFS("/"), u.cpus.List); len(absent) > 0 {
		log.Warn("rx-cpus lists CPUs that do not exist, ignoring all of rx-cpus: received packets stay on the CPUs that serve the NIC's queues", "absent_cpus", config.FormatCPUs(absent))
	}
}

func (u *underlayFlags) add(cmd *cobra.Command) {
	cmd.Flags().TextVar(&u.mode, "underlay", config.UnderlayAuto,
		"sockets for data messages: `auto|udp|xdp`\n(xdp: AF_XDP where the device supports it; auto: AF_XDP where it supports zero-copy)")
	cmd.Flags().StringVar(&u.device, "underlay-device", "",
		"network device for AF_XDP (default: the device of the route to most peers)")
	completeFlag(cmd, "underlay", "auto", "udp", "xdp")
	cmd.Flags().TextVar(&u.cpus, "rx-cpus", config.ReceiveCPUs{},
		"CPUs over which an XDP cpumap spreads received UDP packets by source port:\n`off|auto|LIST`, such as 0-3,8 (not with --underlay xdp)")
	completeFlag(cmd, "rx-cpus", "off", "auto")
	cmd.Flags().TextVar(&u.fragments, "outer-fragments", config.OuterFragments(false),
		"whether messages that exceed the path MTU may leave in fragments: `off|on`\n(off fits inner packets to the path, by fragments or ICMP errors)")
	completeFlag(cmd, "outer-fragments", "off", "on")
}

// explainUnderlay adds the reason if the daemon rejected dev because of its underlay and rx-cpus: the daemon returns only EINVAL.
func explainUnderlay(c *uapi.Client, dev *config.Device, err error) error {
	if !errors.Is(err, syscall.EINVAL) || dev.Underlay == nil && dev.ReceiveCPUs == nil {
		return err
	}
	var current show.Stats
	if c.Stats(&current) != nil || current.Path == nil {
		return err
	}
	mode, cpus := current.Path.Mode, config.ReceiveCPUs{}
	if current.Path.ReceiveCPUs != nil {
		cpus = current.Path.ReceiveCPUs.Mode
	}
	mode, cpus = *cmp.Or(dev.Underlay, &mode), *cmp.Or(dev.ReceiveCPUs, &cpus)
	if reason := config.CheckReceiveCPUs(mode, cpus); reason != nil {
		return fmt.Errorf("%w: underlay %v and rx-cpus %v: %w", err, mode, cpus, reason)
	}
	return err
}
