// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/quick"
)

func newSaveCmd() *cobra.Command {
	return &cobra.Command{
		Use:               "save CONFIG_FILE | INTERFACE",
		Short:             "Save the current state of an interface to its file",
		Long:              "save replaces the interface's file by one with its current state. Only the owner can read the new file. Comments are lost.",
		Example:           "  ropewalk save wg0",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeConfig,
		RunE: func(cmd *cobra.Command, args []string) error {
			outliveClosedPipe()
			return withRunning(cmd, args[0], func(r *quick.Runner, i quick.Interface) error { return r.Save(cmd.Context(), i) })
		},
	}
}
