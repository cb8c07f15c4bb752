// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

func newPubkeyCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "pubkey",
		Short:   "Print the public key of a private key",
		Long:    "pubkey prints the public key of a private key, which it reads in base64 from standard input.",
		Example: "  ropewalk pubkey < private.key > public.key",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			key, err := untilDone(cmd.Context(), func() (noise.PrivateKey, error) { return readPrivateKey(cmd.InOrStdin()) })
			if err != nil {
				return err
			}
			return printKey(cmd.OutOrStdout(), key.Public().Base64())
		},
	}
}

const (
	base64KeySize = 44
	maxKeyInput   = 64 << 10 // bytes, most of which can only be white space
)

var (
	errKeyFormat   = errors.New("key is not the correct length or format")
	errKeyTrailing = errors.New("trailing characters found after key")
)

// readPrivateKey accepts the same input as `wg pubkey`: a key, followed only by white space or zero bytes.
func readPrivateKey(r io.Reader) (noise.PrivateKey, error) {
	in, err := io.ReadAll(io.LimitReader(r, maxKeyInput))
	if err != nil {
		return noise.PrivateKey{}, fmt.Errorf("reading the private key: %w", err)
	}
	if len(in) < base64KeySize {
		return noise.PrivateKey{}, errKeyFormat
	}
	key, rest := string(in[:base64KeySize]), string(in[base64KeySize:])
	if strings.Trim(rest, " \t\n\v\f\r\x00") != "" || len(in) == maxKeyInput {
		return noise.PrivateKey{}, errKeyTrailing
	}
	k, err := noise.ParseBase64[noise.PrivateKey](key)
	if err != nil {
		return noise.PrivateKey{}, errKeyFormat
	}
	return k, nil
}
