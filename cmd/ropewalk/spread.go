// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"
)

func newSpreadCmd() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "spread",
		Short: "Spread a tunnel that ropewalk does not run over all NIC queues",
		Long: "spread is for the WireGuard that runs already, the kernel's above all: each inner flow gets an outer source port of\n" +
			"its own, so that the receiver's NIC puts flows on different queues, and no flow is reordered. The receiver's side\n" +
			"puts the one port back that its WireGuard expects. Do it at both ends, with the same range of ports. It is not for\n" +
			"tunnels through a NAT. `ropewalk run` needs none of this: it spreads by itself.",
		Example: "  ropewalk spread attach eth0 --port 51820\n  ropewalk spread status\n  ropewalk spread detach eth0",
	})
	cmd.AddCommand(newSpreadAttachCmd(), newSpreadStatusCmd(), newSpreadDetachCmd(), newSpreadPlanCmd())
	return cmd
}
