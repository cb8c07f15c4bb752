// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

func newReloadCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "reload CONFIG_FILE | INTERFACE",
		Short: "Apply a changed wg-quick file to an interface and keep its sessions",
		Long: "reload applies the keys, the peers and the spread and underlay settings of the interface's file to the running tunnel.\n" +
			"Peers that stay in the file keep their sessions: no packet is lost. Settings that [Interface] does not mention are kept,\n" +
			"such as a private key that a PostUp command set, or the fwmark that up chose for a default route. reload ignores\n" +
			"addresses, MTU, DNS, routes, Lanes, Metrics and commands: they need `ropewalk down` and `ropewalk up`.",
		Example:           "  ropewalk reload wg0\n  systemctl reload ropewalk@wg0",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeConfig,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withInterface(cmd, args[0], func(r *quick.Runner, i quick.Interface) error {
				return notifyReload(func() error { return reload(cmd.Context(), r, i) })
			})
		},
	}
}

func reload(ctx context.Context, r *quick.Runner, i quick.Interface) error {
	return withDaemon(r.Sockets, i.Name, func(c *uapi.Client) error {
		st, err := c.Status()
		if err != nil {
			return err
		}
		dev, err := resync(ctx, i.File, r.Resolve, st.Peers)
		if err != nil {
			return err
		}
		return explainUnderlay(c, &dev, c.Configure(dev))
	})
}

// resync returns the changes of `ropewalk syncconf`, except that settings which the file does not mention are kept. One of
// them may be a private key from a credential, which is not readable any more once a service has started.
func resync(ctx context.Context, f *conffile.File, resolve conffile.Resolver, peers []config.PeerStatus) (config.Device, error) {
	dev, err := f.Sync(ctx, resolve, peers)
	if err != nil {
		return config.Device{}, err
	}
	conf := &f.Interface
	dev.PrivateKey, dev.ListenPort, dev.FwMark = conf.PrivateKey, conf.ListenPort, conf.FwMark
	conf.AddOwnSettings(&dev)
	return dev, nil
}
