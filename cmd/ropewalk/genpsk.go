// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

func newGenpskCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "genpsk",
		Short: "Print a new preshared key",
		Long: "genpsk prints a new preshared key in base64. Configure it on both peers. It warns if standard output is a file that others\n" +
			"can access.",
		Example: "  umask 077; ropewalk genpsk > preshared.key",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			warnIfWorldAccessible(cmd.ErrOrStderr(), cmd.OutOrStdout())
			key, err := noise.NewPresharedKey(rand.Reader)
			if err != nil {
				return err
			}
			return printKey(cmd.OutOrStdout(), key.Base64())
		},
	}
}
