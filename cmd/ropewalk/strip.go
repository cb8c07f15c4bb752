// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/quick"
)

func newStripCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "strip CONFIG_FILE | INTERFACE",
		Short: "Print a wg-quick file without wg-quick's and ropewalk's keys",
		Long: "strip prints a wg-quick file with only the keys that wg(8) understands, including the private key, for\n" +
			"`wg syncconf wg0 <(ropewalk strip wg0)`.",
		Example:           "  ropewalk strip wg0",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeConfig,
		RunE:              func(cmd *cobra.Command, args []string) error { return strip(cmd, args[0]) },
	}
}

func strip(cmd *cobra.Command, arg string) error {
	path, _, err := quick.Find(quick.DefaultDir, arg)
	if err != nil {
		return withHint(withFileHint(err, arg))
	}
	f, err := os.Open(path)
	if err != nil {
		return withHint(fmt.Errorf("opening configuration: %w", err))
	}
	defer f.Close()
	return conffile.Strip(cmd.OutOrStdout(), f)
}
