// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"
)

func newSpreadCmd() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "spread",
		Short: "Spread the tunnel of another WireGuard over all NIC queues",
		Long: "spread adds source-port spreading to a tunnel of another WireGuard, such as the kernel's. Each inner flow gets its own\n" +
			"outer source port, so that the receiver's NIC distributes flows over its queues. Packets of one flow stay in order. The\n" +
			"receiver restores the source port that its WireGuard expects (gather). Both ends need it, with the same range of ports.\n" +
			"It does not work through a NAT. `ropewalk run` spreads by itself and needs no `ropewalk spread`.",
		Example: "  ropewalk spread attach eth0 --port 51820\n  ropewalk spread status\n  ropewalk spread detach",
	})
	cmd.AddCommand(newSpreadAttachCmd(), newSpreadStatusCmd(), newSpreadDetachCmd(), newSpreadPauseCmd(true), newSpreadPauseCmd(false),
		newSpreadPlanCmd())
	return cmd
}
