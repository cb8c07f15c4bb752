// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
)

func newSpreadDetachCmd() *cobra.Command {
	var port uint16
	cmd := &cobra.Command{
		Use:   "detach DEVICE",
		Short: "Detach spreading from a device",
		Long: "detach ends spreading on a device, for one tunnel or for all, and removes its programs and pins. It succeeds if nothing\n" +
			"is attached, or if the device no longer exists.",
		Example:           "  ropewalk spread detach eth0\n  ropewalk spread detach eth0 --port 51820",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeDevice,
		RunE: func(cmd *cobra.Command, args []string) error {
			host := new(spreader.Host)
			if all, err := host.Status(cmd.Context(), args[0]); err == nil && len(all) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "nothing is spread on %s\n", printable(args[0]))
			}
			return printing(host.Detach(cmd.Context(), args[0], port))
		},
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "listen port of the tunnel to detach (default: all tunnels)")
	return cmd
}
