// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

func newSetCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "set INTERFACE KEYWORD VALUE ...",
		Short: "Change an interface and its peers, as wg(8) does",
		Long: "set changes settings of an interface and its peers, all of them or, on an error, none. Settings of the interface, which\n" +
			"precede the first peer:\n" +
			"  listen-port PORT        0 lets the kernel choose\n" +
			"  fwmark MARK             0 or off for none; 0x for hexadecimal\n" +
			"  private-key FILE        an empty file removes the key\n" +
			ownSettings() +
			"Settings of a peer, which is added if it does not exist:\n" +
			"  peer KEY                selects the peer for the keywords after it\n" +
			"  name NAME               a name for people, or empty (not in wg)\n" +
			"  remove                  removes the peer\n" +
			"  preshared-key FILE      an empty file removes the key\n" +
			"  endpoint HOST:PORT      the host is an address or a name\n" +
			"  persistent-keepalive N  seconds between keepalives; 0 or off for none\n" +
			"  post-quantum auto|off|required|default  in place of that of the interface (not in wg); forget: sessions\n" +
			"                          without such keys are no downgrade any more\n" +
			"  allowed-ips LIST        replaces the allowed IPs; with + or - before each prefix, adds or removes it\n" +
			"WG_ENDPOINT_RESOLUTION_RETRIES=N|infinity sets the number of retries when a name server does not answer (default 15).",
		Example: "  ropewalk set wg0 listen-port 51820 private-key /etc/wireguard/private.key\n" +
			"  ropewalk set wg0 peer 'xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=' endpoint vpn.example.org:51820 \\\n" +
			"      allowed-ips 10.0.0.0/24,fd00::/64 persistent-keepalive 25\n" +
			"  ropewalk set wg0 peer 'xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=' allowed-ips +10.0.1.0/24,-10.0.0.0/24\n" +
			"  ropewalk set wg0 peer 'xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=' remove",
		DisableFlagParsing:    true, // "-10.0.0.0/24" is not a flag
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     completeSet,
		RunE: func(cmd *cobra.Command, args []string) error {
			if wantsHelp(args) {
				return cmd.Help()
			}
			if len(args) < 2 {
				return usageError{fmt.Errorf("want an interface and at least one setting\nusage: %s", cmd.UseLine())}
			}
			return set(cmd, socketDir(), args[0], args[1:])
		},
	}
}

// ownSettings returns the help of the settings that wg does not have.
func ownSettings() string {
	var b strings.Builder
	for _, s := range config.Table() {
		fmt.Fprintf(&b, "  %-23s as `ropewalk run --%s` (not in wg)\n", s.Flag()+" "+s.Form, s.Flag())
	}
	return b.String()
}

// wantsHelp finds the help flag: set does not parse flags.
func wantsHelp(args []string) bool {
	return slices.Contains(args, "--help") || len(args) > 0 && args[0] == "-h"
}

func set(cmd *cobra.Command, dir uapi.Dir, name string, words []string) error {
	resolve, err := newResolver(cmd)
	if err != nil {
		return err
	}
	var warnings []string
	dev, err := untilDone(cmd.Context(), func() (dev config.Device, err error) {
		dev, warnings, err = conffile.ParseArgs(cmd.Context(), words, resolve)
		return dev, err
	})
	if err != nil {
		return setError(err)
	}
	warn(cmd, warnings)
	return withStartingDaemon(cmd.Context(), dir, name, func(c *uapi.Client) error {
		err := c.Configure(dev)
		var current show.Stats
		if err == nil && dev.Spray != nil && c.Stats(&current) == nil && current.Spread != nil {
			warnOfSpray(cmd, current.Spread.Mode, current.Spread.Spray)
		}
		return err
	})
}

// warnOfSpray prints a warning if spray has no effect.
func warnOfSpray(cmd *cobra.Command, mode config.SpreadMode, spray config.Spray) {
	if mode.Disables(spray) {
		warn(cmd, []string{"Warning: spray has no effect while spread is off"})
	}
}

// setError turns an error in the arguments into a usage error, and adds suggestions for an unknown keyword.
func setError(err error) error {
	arg, ok := errors.AsType[*conffile.ArgError](err)
	switch {
	case !ok:
		return err
	case arg.Known != nil:
		hint := didYouMean(arg.Word, arg.Known)
		if hint == "" {
			hint = ": want one of " + strings.Join(arg.Known, ", ")
		}
		return usageError{fmt.Errorf("%w%s", err, hint)}
	}
	return usageError{err}
}

func warn(cmd *cobra.Command, warnings []string) {
	for _, warning := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), printable(warning))
	}
}
