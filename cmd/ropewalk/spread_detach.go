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
		Use:   "detach",
		Short: "Detach spreading",
		Long: "detach ends spreading on all devices, for one tunnel or for all, and removes programs and pins. It succeeds if nothing\n" +
			"is attached.",
		Example: "  ropewalk spread detach\n  ropewalk spread detach --port 51820",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unexpected argument %q: detach ends spreading on all devices; --port names one tunnel", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			host := new(spreader.Host)
			if all, err := host.Status(cmd.Context(), ""); err == nil && len(all) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "nothing is spread on any device")
			}
			return printing(host.Detach(cmd.Context(), port))
		},
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "listen port of the tunnel to detach (default: all tunnels)")
	return cmd
}
