// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"
)

// newHelpCmd returns a replacement for cobra's help command, which exits with 0 for an unknown command.
func newHelpCmd() *cobra.Command {
	return &cobra.Command{
		Use:                   "help [COMMAND]",
		Short:                 "Show the help of a command",
		Long:                  "help shows the help of a command, as its flag --help does. Without an argument it lists the commands.",
		DisableFlagsInUseLine: true,
		Example:               "  ropewalk help show\n  ropewalk help spread attach",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			at, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return nil, noFiles
			}
			return subcommandNames(at), noFiles
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			at, rest := cmd.Root(), args
			for len(rest) > 0 {
				next, _, err := at.Find(rest[:1])
				if err != nil || next == at {
					return unknownSubcommand(at, rest[0])
				}
				at, rest = next, rest[1:]
			}
			at.InitDefaultHelpFlag()
			at.InitDefaultVersionFlag()
			at.SetOut(cmd.OutOrStdout())
			return at.Help()
		},
	}
}
