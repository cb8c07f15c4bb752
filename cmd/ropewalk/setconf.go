// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/conffile"
	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

func newSetconfCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "setconf INTERFACE FILE",
		Short: "Make an interface what a file says, as wg(8) does",
		Long: "setconf replaces the interface's configuration by what the file says: what the file does not mention is removed,\n" +
			"and all sessions end. The file has wg(8)'s keys only; see `ropewalk strip` for those of wg-quick, and\n" +
			"`ropewalk syncconf` for keeping sessions.",
		Example: "  ropewalk setconf wg0 wg0.conf\n  ropewalk setconf wg0 <(ropewalk strip wg0)",
	}
	return applying(cmd, func(ctx context.Context, f *conffile.File, resolve conffile.Resolver, _ *uapi.Client) (config.Device, error) {
		return f.Device(ctx, resolve)
	})
}

func newAddconfCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "addconf INTERFACE FILE",
		Short: "Add what a file says to an interface, as wg(8) does",
		Long: "addconf adds the file's peers to those that the interface has, and changes of the rest only what the file mentions.\n" +
			"The file has wg(8)'s keys only; see `ropewalk strip` for those of wg-quick.",
		Example: "  ropewalk addconf wg0 more-peers.conf",
	}
	return applying(cmd, func(ctx context.Context, f *conffile.File, resolve conffile.Resolver, _ *uapi.Client) (config.Device, error) {
		return f.Additions(ctx, resolve)
	})
}

func newSyncconfCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "syncconf INTERFACE FILE",
		Short: "Make an interface what a file says and keep its sessions, as wg(8) does",
		Long: "syncconf does what setconf does, but the peers that are both in the file and on the interface keep their sessions: it\n" +
			"is the way to reload a file while traffic flows. The file has wg(8)'s keys only; see `ropewalk strip` for those of\n" +
			"wg-quick.",
		Example: "  ropewalk syncconf wg0 <(ropewalk strip wg0)",
	}
	return applying(cmd, func(ctx context.Context, f *conffile.File, resolve conffile.Resolver, c *uapi.Client) (config.Device, error) {
		st, err := c.Status()
		if err != nil {
			return config.Device{}, err
		}
		return f.Sync(ctx, resolve, st.Peers)
	})
}

// changer makes of a file what a device is to be told. It may ask the device what it is now.
type changer func(context.Context, *conffile.File, conffile.Resolver, *uapi.Client) (config.Device, error)

// applying completes a command that applies a file to an interface.
func applying(cmd *cobra.Command, change changer) *cobra.Command {
	cmd.Args = usageArgs(cobra.ExactArgs(2))
	cmd.ValidArgsFunction = completeInterfaceAndFile
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return applyFile(cmd, socketDir(), args[0], args[1], change)
	}
	return cmd
}

func applyFile(cmd *cobra.Command, dir uapi.Dir, name, path string, change changer) error {
	resolve, err := newResolver(cmd)
	if err != nil {
		return err
	}
	f, err := readConf(path)
	if err != nil {
		return withHint(quickKeyHint(err))
	}
	warn(cmd, f.Warnings)
	return withDaemon(dir, name, func(c *uapi.Client) error {
		dev, err := change(cmd.Context(), f, resolve, c)
		if err != nil {
			return err
		}
		return c.Configure(dev)
	})
}

// readConf reads a file of wg(8)'s, which does not mind who else may.
func readConf(path string) (*conffile.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening configuration: %w", err)
	}
	defer f.Close()
	return conffile.Parse(path, f, conffile.WG)
}

// quickKeyHint says what to do with a file of wg-quick's.
func quickKeyHint(err error) error {
	lines, _ := errors.AsType[conffile.Error](err)
	for _, line := range lines {
		if conffile.IsQuickKey(line.Key) {
			return fmt.Errorf("%w\nthis is a file for `ropewalk up`: `ropewalk strip` leaves what belongs here", err)
		}
	}
	return keyHint(err)
}

// keyHint adds suggestions for the first unknown key of a file.
func keyHint(err error) error {
	lines, _ := errors.AsType[conffile.Error](err)
	for _, line := range lines {
		known, ok := strings.CutPrefix(line.Want, "one of ")
		if !ok || line.Key == "" {
			continue
		}
		if suggestions := didYouMean(line.Key, strings.Split(known, ", ")); suggestions != "" {
			return fmt.Errorf("%w%s", err, suggestions)
		}
	}
	return err
}
