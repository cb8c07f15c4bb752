// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/adopt"
)

func newSpreadDetachCmd() *cobra.Command {
	var port uint16
	cmd := &cobra.Command{
		Use:   "detach DEVICE",
		Short: "Undo what spread attach did",
		Long: "detach ends spreading on the device, for one tunnel or for all, and removes every trace of it. It is no error that\n" +
			"nothing is attached, or that the device is gone.",
		Example:           "  ropewalk spread detach eth0\n  ropewalk spread detach eth0 --port 51820",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeDevice,
		RunE: func(cmd *cobra.Command, args []string) error {
			return printing(new(adopt.Host).Detach(cmd.Context(), args[0], port))
		},
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "listen port of the one tunnel to detach (default: all)")
	return cmd
}
