// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/quick"
)

func newSaveCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "save CONFIG_FILE | INTERFACE",
		Short: "Save an interface's present state to its file",
		Long: "save replaces the interface's file by one that would bring it up as it is now, readable by its owner only.\n" +
			"Comments are lost.",
		Example:           "  ropewalk save wg0",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeConfig,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withInterface(cmd, args[0], func(r *quick.Runner, i quick.Interface) error {
				return r.Save(cmd.Context(), i)
			})
		},
	}
}
