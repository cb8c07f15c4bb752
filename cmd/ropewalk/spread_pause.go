// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
)

// newSpreadPauseCmd returns the command pause or resume.
func newSpreadPauseCmd(pause bool) *cobra.Command {
	var peer string
	cmd := &cobra.Command{
		Use:     "resume",
		Short:   "End a pause of spreading",
		Long:    "resume ends what pause did, for all peers or for one. A peer that is paused by itself stays so.",
		Example: "  ropewalk spread resume\n  ropewalk spread resume --peer 192.0.2.7",
	}
	if pause {
		cmd.Use, cmd.Short = "pause", "Let messages keep the listen port, without detaching"
		cmd.Long = "pause makes messages keep their tunnel's listen port, as without ropewalk, at once and until\n" +
			"`ropewalk spread resume` or detach. The programs stay attached, and the messages of peers are still gathered."
		cmd.Example = "  ropewalk spread pause\n  ropewalk spread pause --peer 192.0.2.7"
	}
	cmd.Args = usageArgs(cobra.NoArgs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var at netip.Addr
		if peer != "" {
			var err error
			if at, err = netip.ParseAddr(peer); err != nil {
				return usageError{fmt.Errorf("--peer %q: not an IP address", peer)}
			}
		}
		return printing(new(spreader.Host).SetPaused(cmd.Context(), at, pause))
	}
	cmd.Flags().StringVar(&peer, "peer", "", "address of one peer (default: all peers)")
	return cmd
}
