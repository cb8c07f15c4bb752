// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

func newReloadCmd() *cobra.Command {
	var diff bool
	cmd := &cobra.Command{
		Use:   "reload CONFIG_FILE | INTERFACE",
		Short: "Apply a changed wg-quick file to an interface and keep its sessions",
		Long: "reload applies the changes of an interface's file to the running tunnel. It changes keys, peers, spread and underlay\n" +
			"settings, addresses, MTU, DNS, the table and the routes to AllowedIPs. Peers that stay in the file keep their\n" +
			"sessions: no packet is lost. If a step fails, or the kernel's configuration then differs from the plan, reload undoes\n" +
			"its steps, and the tunnel stays as it was. Addresses, routes and rules that the kernel lacks are added again. Other\n" +
			"differences that were there before, such as another program's rule above the tunnel's, end with an error after the\n" +
			"change. A setting whose line was removed returns to its default, except PrivateKey. Settings of [Interface] that the\n" +
			"file never had are kept, such as a private key that a PostUp command set. Addresses and routes that others have added\n" +
			"stay. reload does not run PreUp and PostUp, and Lanes and Metrics need `ropewalk down` and `ropewalk up`: it warns if\n" +
			"they changed. --diff prints what reload would do, and changes nothing.",
		Example:           "  ropewalk reload --diff wg0\n  ropewalk reload wg0\n  systemctl reload ropewalk@wg0",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeConfig,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !diff {
				outliveClosedPipe()
			}
			return withRunning(cmd, args[0], func(r *quick.Runner, i quick.Interface) error {
				warnOfSettings(r.Stderr, withPresentKey(r.Sockets, i))
				if diff {
					return reloadDiff(cmd, r, i)
				}
				return notifyReload(func() error { return reload(cmd, r, i) })
			})
		},
	}
	cmd.Flags().BoolVar(&diff, "diff", false, "print the changes of a reload, and make none")
	return cmd
}

// withPresentKey adds the running tunnel's key to an interface whose file has none. The key may be
// from a credential or a hook.
func withPresentKey(dir uapi.Dir, i quick.Interface) quick.Interface {
	if i.File.Interface.PrivateKey != nil {
		return i
	}
	client, err := dir.Dial(i.Name)
	if err != nil {
		return i
	}
	defer client.Close()
	if status, err := client.Status(); err == nil && !status.PrivateKey.IsZero() {
		file := *i.File
		file.Interface.PrivateKey = &status.PrivateKey
		i.File = &file
	}
	return i
}

func reload(cmd *cobra.Command, r *quick.Runner, i quick.Interface) error {
	return withDaemon(r.Sockets, i.Name, func(*uapi.Client) error {
		return r.Reload(cmd.Context(), i)
	})
}

func reloadDiff(cmd *cobra.Command, r *quick.Runner, i quick.Interface) error {
	return withDaemon(r.Sockets, i.Name, func(*uapi.Client) error {
		change, err := r.PlanReload(cmd.Context(), i)
		if err != nil {
			return err
		}
		for _, note := range change.Notes {
			fmt.Fprintln(cmd.ErrOrStderr(), printable("Warning: "+note))
		}
		return printCommands(cmd, change.Steps)
	})
}

func printCommands(cmd *cobra.Command, steps []quick.Step) error {
	for _, line := range quick.Commands(steps) {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), printable(line)); err != nil {
			return err
		}
	}
	return nil
}
