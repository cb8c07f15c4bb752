// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/conffile"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

func newSetCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "set INTERFACE KEYWORD VALUE ...",
		Short: "Change an interface and its peers, as wg(8) does",
		Long: "set changes what it is told to, all at once or not at all. Of the interface, before the first peer:\n" +
			"  listen-port PORT        0 lets the kernel choose\n" +
			"  fwmark MARK             0 or off for none; hexadecimal with 0x\n" +
			"  private-key FILE        an empty file removes the key\n" +
			"  spread auto|off|on      as `ropewalk run --spread` (not known to wg)\n" +
			"  spread-ports FIRST-LAST as `ropewalk run --spread-ports` (not known to wg)\n" +
			"  underlay auto|udp|xdp   what carries data messages (not known to wg)\n" +
			"  rx-cpus off|auto|LIST   as `ropewalk run --rx-cpus` (not known to wg)\n" +
			"Of a peer, which is added where there is none with that key:\n" +
			"  peer KEY                the peer that what follows is about\n" +
			"  remove                  remove it\n" +
			"  preshared-key FILE      an empty file removes the key\n" +
			"  endpoint HOST:PORT      the host by address or name\n" +
			"  persistent-keepalive N  seconds between keepalives; 0 or off for none\n" +
			"  allowed-ips LIST        these instead of those it has; with + or - before each, these are added or removed\n" +
			"WG_ENDPOINT_RESOLUTION_RETRIES=N|infinity sets how often a name server that does not answer is asked again\n" +
			"(default 15).",
		Example: "  ropewalk set wg0 listen-port 51820 private-key /etc/wireguard/private.key\n" +
			"  ropewalk set wg0 peer 'xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=' endpoint vpn.example.org:51820 \\\n" +
			"      allowed-ips 10.0.0.0/24,fd00::/64 persistent-keepalive 25\n" +
			"  ropewalk set wg0 peer 'xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=' allowed-ips +10.0.1.0/24,-10.0.0.0/24\n" +
			"  ropewalk set wg0 peer 'xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=' remove",
		DisableFlagParsing:    true, // "-10.0.0.0/24" is no flag
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     completeSet,
		RunE: func(cmd *cobra.Command, args []string) error {
			if wantsHelp(args) {
				return cmd.Help()
			}
			if len(args) < 2 {
				return usageError{fmt.Errorf("want an interface and what to set\nusage: %s", cmd.UseLine())}
			}
			return set(cmd, socketDir(), args[0], args[1:])
		},
	}
}

// wantsHelp finds the flag in a command that parses none.
func wantsHelp(args []string) bool {
	return slices.Contains(args, "--help") || len(args) > 0 && args[0] == "-h"
}

func set(cmd *cobra.Command, dir uapi.Dir, name string, words []string) error {
	resolve, err := newResolver(cmd)
	if err != nil {
		return err
	}
	dev, warnings, err := conffile.ParseArgs(cmd.Context(), words, resolve)
	if err != nil {
		return setError(err)
	}
	warn(cmd, warnings)
	return withDaemon(dir, name, func(c *uapi.Client) error { return explainWay(c, &dev, c.Configure(dev)) })
}

// setError makes a mistake in the words a usage error, with the word that was probably meant.
func setError(err error) error {
	arg, ok := errors.AsType[*conffile.ArgError](err)
	switch {
	case !ok:
		return err
	case arg.Known != nil:
		meant := didYouMean(arg.Word, arg.Known)
		if meant == "" {
			meant = ": want one of " + strings.Join(arg.Known, ", ")
		}
		return usageError{fmt.Errorf("%w%s", err, meant)}
	}
	return usageError{err}
}

func warn(cmd *cobra.Command, warnings []string) {
	for _, warning := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), printable(warning))
	}
}
