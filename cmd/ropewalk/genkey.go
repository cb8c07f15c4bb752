// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

func newGenkeyCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "genkey",
		Short:   "Print a new private key",
		Long:    "genkey prints a new private key in base64. It warns if standard output is a file that all users can access.",
		Example: "  umask 077; ropewalk genkey > private.key",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			warnIfWorldAccessible(cmd.ErrOrStderr(), cmd.OutOrStdout())
			key, err := noise.NewPrivateKey(rand.Reader)
			if err != nil {
				return err
			}
			return printKey(cmd.OutOrStdout(), key.Base64())
		},
	}
}

// printKey prints a key. It returns an error if that fails, for example on a full disk.
func printKey(w io.Writer, key string) error {
	if _, err := fmt.Fprintln(w, key); err != nil {
		return fmt.Errorf("writing the key to standard output: %w", err)
	}
	return nil
}

// warnIfWorldAccessible prints wg(8)'s warning if out is a regular file with a permission for users that are neither owner nor group.
func warnIfWorldAccessible(warnings, out io.Writer) {
	f, ok := out.(*os.File)
	if !ok {
		return
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o007 != 0 {
		fmt.Fprintln(warnings, "Warning: writing to world accessible file.\nConsider setting the umask to 077 and trying again.")
	}
}
