// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

func newSetconfCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "setconf INTERFACE FILE",
		Short: "Replace the configuration of an interface by a file, as wg(8) does",
		Long: "setconf replaces the configuration of an interface by a file. Settings and peers that are not in the file are removed,\n" +
			"and all sessions end; `ropewalk syncconf` keeps sessions. The file may have wg(8)'s keys only: `ropewalk strip`\n" +
			"removes wg-quick's.",
		Example: "  ropewalk setconf wg0 wg0.conf\n  ropewalk setconf wg0 <(ropewalk strip wg0)",
	}
	return applyCommand(cmd, func(ctx context.Context, f *conffile.File, resolve conffile.Resolver, _ *uapi.Client) (config.Device, error) {
		return f.Device(ctx, resolve)
	})
}

func newAddconfCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "addconf INTERFACE FILE",
		Short: "Add the configuration of a file to an interface, as wg(8) does",
		Long: "addconf adds the configuration of a file to an interface: it adds peers, and changes only settings that are in the\n" +
			"file. The file may have wg(8)'s keys only: `ropewalk strip` removes wg-quick's.",
		Example: "  ropewalk addconf wg0 more-peers.conf",
	}
	return applyCommand(cmd, func(ctx context.Context, f *conffile.File, resolve conffile.Resolver, _ *uapi.Client) (config.Device, error) {
		return f.Additions(ctx, resolve)
	})
}

func newSyncconfCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "syncconf INTERFACE FILE",
		Short: "Replace the configuration by a file and keep sessions, as wg(8) does",
		Long: "syncconf replaces the configuration of an interface by a file, as setconf does, but keeps sessions. Peers that are\n" +
			"both in the file and on the interface lose no packet. The file may have wg(8)'s keys only: `ropewalk strip` removes\n" +
			"wg-quick's.",
		Example: "  ropewalk syncconf wg0 <(ropewalk strip wg0)",
	}
	return applyCommand(cmd, func(ctx context.Context, f *conffile.File, resolve conffile.Resolver, c *uapi.Client) (config.Device, error) {
		st, err := c.Status()
		if err != nil {
			return config.Device{}, err
		}
		return f.Sync(ctx, resolve, st.Peers)
	})
}

// diffFunc returns the changes that a file makes to a device. It may read the current state of the device from the client.
type diffFunc func(context.Context, *conffile.File, conffile.Resolver, *uapi.Client) (config.Device, error)

// applyCommand completes a command that applies a file to an interface.
func applyCommand(cmd *cobra.Command, diff diffFunc) *cobra.Command {
	cmd.Args = usageArgs(cobra.ExactArgs(2))
	cmd.ValidArgsFunction = completeInterfaceAndFile
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return applyFile(cmd, socketDir(), args[0], args[1], diff)
	}
	return cmd
}

func applyFile(cmd *cobra.Command, dir uapi.Dir, name, path string, diff diffFunc) error {
	resolve, err := newResolver(cmd)
	if err != nil {
		return err
	}
	f, err := untilDone(cmd.Context(), func() (*conffile.File, error) { return readConf(path) })
	if err != nil {
		return withHint(quickKeyHint(err))
	}
	warn(cmd, f.Warnings)
	if cmd.Name() != "addconf" { // whose files need not be whole
		warn(cmd, f.CheckSettings())
	}
	return withStartingDaemon(cmd.Context(), dir, name, func(c *uapi.Client) error {
		dev, err := diff(cmd.Context(), f, resolve, c)
		if err != nil {
			return err
		}
		return c.Configure(dev)
	})
}

// readConf reads a file in wg(8)'s format. Like wg(8), it accepts a file that others can read.
func readConf(path string) (*conffile.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening configuration: %w", err)
	}
	defer f.Close()
	return conffile.Parse(path, f, conffile.WG)
}

// quickKeyHint adds a hint if the file has keys of wg-quick, else the hint of keyHint.
func quickKeyHint(err error) error {
	lines, _ := errors.AsType[conffile.Error](err)
	for _, line := range lines {
		if conffile.IsQuickKey(line.Key) {
			return fmt.Errorf("%w\nthis is a wg-quick file, for `ropewalk up`: `ropewalk strip` removes wg-quick's keys", err)
		}
	}
	return keyHint(err)
}

// keyHint adds suggestions for the unknown settings of a file (KEY in KEY = value).
func keyHint(err error) error {
	lines, _ := errors.AsType[conffile.Error](err)
	var hints []string
	for _, line := range lines {
		known, ok := strings.CutPrefix(line.Want, "one of ")
		if !ok || line.Key == "" {
			continue
		}
		for _, key := range resembling(line.Key, strings.Split(known, ", ")) {
			hints = append(hints, fmt.Sprintf("\tline %d: %s", line.Line, key))
		}
	}
	if len(hints) == 0 {
		return err
	}
	return fmt.Errorf("%w\n\nDid you mean this?\n%s", err, strings.Join(hints, "\n"))
}
