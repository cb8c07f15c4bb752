// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/device"
	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/underlay/auto"
	"github.com/ropewalk/ropewalk/pkg/underlay/udp"
)

// underlayFlags say by what way data messages enter and leave.
type underlayFlags struct {
	mode   config.UnderlayMode
	device string
}

func (u *underlayFlags) add(cmd *cobra.Command) {
	cmd.Flags().TextVar(&u.mode, "underlay", config.UnderlayAuto,
		"way of data messages: `auto|udp|xdp`\n(xdp: AF_XDP sockets, where they can be had; auto: where the device has zero-copy)")
	cmd.Flags().StringVar(&u.device, "underlay-device", "",
		"network device whose queues AF_XDP uses (default: the one that most peers are reached by)")
	completeFlag(cmd, "underlay", "auto", "udp", "xdp")
}

// openPort opens the UDP port, and puts in front of it what chooses the way.
func openPort(log *slog.Logger, xdpDevice string) func(device.PortOptions) (underlay.Port, error) {
	return func(o device.PortOptions) (underlay.Port, error) {
		u, err := udp.Open(udp.Config{
			Port: o.Port, Lanes: o.Lanes, Mark: o.Mark, ReceiveBuffer: receiveBuffer(o.Lanes), Linger: true,
		})
		if err != nil {
			return nil, err
		}
		p, err := auto.Open(auto.Config{UDP: u, Mode: o.Mode, Device: xdpDevice, Mark: o.Mark, Linger: true, Log: log})
		if err != nil {
			return nil, errors.Join(err, u.Close())
		}
		return p, nil
	}
}
