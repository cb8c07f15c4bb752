// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
)

func newSpreadDetachCmd() *cobra.Command {
	var port uint16
	cmd := &cobra.Command{
		Use:   "detach [DEVICE]",
		Short: "Detach spreading",
		Long: "detach ends spreading on all devices, for one tunnel or for all, and removes programs and pins. It succeeds if nothing\n" +
			"is attached. If DEVICE is named, and nothing is attached to it, detach changes nothing.",
		Example:           "  ropewalk spread detach\n  ropewalk spread detach --port 51820",
		Args:              usageArgs(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeDevice,
		RunE: func(cmd *cobra.Command, args []string) error {
			host := new(spreader.Host)
			device := strings.Join(args, "")
			if all, err := host.Status(cmd.Context(), device); err == nil && len(all) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "nothing is spread on %s\n", printable(cmp.Or(device, "any device")))
				if device != "" {
					return nil
				}
			}
			return printing(host.Detach(cmd.Context(), port))
		},
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "listen port of the tunnel to detach (default: all tunnels)")
	return cmd
}
