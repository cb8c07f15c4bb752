// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/show"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// underlayFlags say by what way data messages enter and leave.
type underlayFlags struct {
	mode   config.UnderlayMode
	device string
	cpus   config.ReceiveCPUs
}

// check finds what cannot be together.
func (u *underlayFlags) check() error {
	if err := config.CheckReceiveCPUs(u.mode, u.cpus); err != nil {
		return usageError{fmt.Errorf("--rx-cpus %v: %w", u.cpus, err)}
	}
	return nil
}

func (u *underlayFlags) add(cmd *cobra.Command) {
	cmd.Flags().TextVar(&u.mode, "underlay", config.UnderlayAuto,
		"way of data messages: `auto|udp|xdp`\n(xdp: AF_XDP sockets, where they can be had; auto: where the device has zero-copy)")
	cmd.Flags().StringVar(&u.device, "underlay-device", "",
		"network device whose queues AF_XDP uses (default: the one that most peers are reached by)")
	completeFlag(cmd, "underlay", "auto", "udp", "xdp")
	cmd.Flags().TextVar(&u.cpus, "rx-cpus", config.ReceiveCPUs{},
		"processors over which the kernel spreads, by source port, what UDP sockets\nreceive: `off|auto|LIST`, such as 0-3,8 (XDP's cpumap; not with --underlay xdp)")
	completeFlag(cmd, "rx-cpus", "off", "auto")
}

// explainWay adds to a refusal of dev what cannot be together: the answer itself is a number.
func explainWay(c *uapi.Client, dev *config.Device, err error) error {
	if !errors.Is(err, syscall.EINVAL) || dev.Underlay == nil && dev.ReceiveCPUs == nil {
		return err
	}
	var now show.Stats
	if c.Stats(&now) != nil || now.Way == nil {
		return err
	}
	mode, cpus := now.Way.Mode, config.ReceiveCPUs{}
	if now.Way.ReceiveCPUs != nil {
		cpus = now.Way.ReceiveCPUs.Mode
	}
	mode, cpus = *cmp.Or(dev.Underlay, &mode), *cmp.Or(dev.ReceiveCPUs, &cpus)
	if why := config.CheckReceiveCPUs(mode, cpus); why != nil {
		return fmt.Errorf("%w: underlay %v and rx-cpus %v: %w", err, mode, cpus, why)
	}
	return err
}
