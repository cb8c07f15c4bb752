// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/quick"
)

func newDownCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "down CONFIG_FILE | INTERFACE",
		Short: "Take down an interface and undo the changes of up",
		Long: "down takes down an interface: it undoes the changes of up or wg-quick(8) and waits for the daemon to end. With\n" +
			"SaveConfig = true it first saves the interface's state to its file. It also cleans up after a daemon that was killed.",
		Example:           "  ropewalk down wg0",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeConfig,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withInterface(cmd, args[0], func(r *quick.Runner, i quick.Interface) error {
				return r.Down(cmd.Context(), i)
			})
		},
	}
}
