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
	return keyCommand(noise.NewPrivateKey, &cobra.Command{
		Use:     "genkey",
		Short:   "Print a new private key",
		Long:    "genkey prints a new private key in base64. It warns if standard output is a file that all users can access.",
		Example: "  umask 077; ropewalk genkey > private.key",
	})
}

func newGenpskCmd() *cobra.Command {
	return keyCommand(noise.NewPresharedKey, &cobra.Command{
		Use:   "genpsk",
		Short: "Print a new preshared key",
		Long: "genpsk prints a new preshared key in base64. Configure it on both peers. It warns if standard output is a file that others\n" +
			"can access.",
		Example: "  umask 077; ropewalk genpsk > preshared.key",
	})
}

// keyCommand completes a command that prints a key.
func keyCommand[K interface{ Base64() string }](generate func(io.Reader) (K, error), cmd *cobra.Command) *cobra.Command {
	cmd.Args = usageArgs(cobra.NoArgs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		warnIfWorldAccessible(cmd.ErrOrStderr(), cmd.OutOrStdout())
		key, err := generate(rand.Reader)
		if err != nil {
			return err
		}
		return printKey(cmd.OutOrStdout(), key.Base64())
	}
	return cmd
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
