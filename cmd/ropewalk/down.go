// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/quick"
)

func newDownCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "down CONFIG_FILE | INTERFACE",
		Short: "Take down an interface and undo what up did",
		Long: "down undoes what up, or wg-quick(8), did for the interface, saves its state with SaveConfig = true, and waits for\n" +
			"the daemon to end. It also removes what is left of an interface whose daemon was killed.",
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
