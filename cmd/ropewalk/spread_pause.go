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
		Use:     "resume DEVICE",
		Short:   "End a pause of spreading",
		Long:    "resume ends what pause did, for all peers or for one. A peer that is paused by itself stays so.",
		Example: "  ropewalk spread resume eth0\n  ropewalk spread resume eth0 --peer 192.0.2.7",
	}
	if pause {
		cmd.Use, cmd.Short = "pause DEVICE", "Let messages keep the listen port, without detaching"
		cmd.Long = "pause makes the messages that leave a device keep their tunnel's listen port, as without ropewalk, at once and until\n" +
			"`ropewalk spread resume` or detach. The programs stay attached, and what peers send is still gathered."
		cmd.Example = "  ropewalk spread pause eth0\n  ropewalk spread pause eth0 --peer 192.0.2.7"
	}
	cmd.Args = usageArgs(cobra.ExactArgs(1))
	cmd.ValidArgsFunction = completeDevice
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var at netip.Addr
		if peer != "" {
			var err error
			if at, err = netip.ParseAddr(peer); err != nil {
				return usageError{fmt.Errorf("--peer %q: not an IP address", peer)}
			}
		}
		return printing(new(spreader.Host).SetPaused(cmd.Context(), args[0], at, pause))
	}
	cmd.Flags().StringVar(&peer, "peer", "", "address of one peer (default: all peers)")
	return cmd
}
