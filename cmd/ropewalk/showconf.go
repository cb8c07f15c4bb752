// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

func newShowconfCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "showconf INTERFACE",
		Short: "Print an interface's configuration as a file, as wg(8) does",
		Long: "showconf prints the current configuration of an interface as a file for setconf, addconf and syncconf. The file contains\n" +
			"the private key.",
		Example:           "  umask 077; ropewalk showconf wg0 > wg0.conf",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeInterface,
		RunE: func(cmd *cobra.Command, args []string) error {
			warnIfWorldAccessible(cmd.ErrOrStderr(), cmd.OutOrStdout())
			return withDaemon(socketDir(), args[0], func(c *uapi.Client) error {
				st, err := c.Status()
				if err != nil {
					return err
				}
				return conffile.ShowConf(cmd.OutOrStdout(), st, interfaceName)
			})
		},
	}
}
