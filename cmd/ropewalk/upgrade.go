// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

func newUpgradeCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "upgrade INTERFACE",
		Short: "Replace the running daemon of an interface by this program",
		Long: "upgrade replaces the running daemon of an interface by this program, without interrupting the tunnel. The old daemon\n" +
			"starts this program with its own flags and hands the tunnel over. The interface, its configuration, addresses and routes,\n" +
			"TCP connections and the systemd service are kept. The command returns when the new daemon serves the tunnel. If the\n" +
			"upgrade fails, the old daemon continues.",
		Example:           "  ropewalk upgrade wg0   # after a package upgrade",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeInterface,
		RunE:              func(_ *cobra.Command, args []string) error { return upgrade(socketDir(), args[0]) },
	}
}

// upgrade replaces the daemon of an interface by this program.
func upgrade(dir uapi.Dir, name string) error {
	path, err := os.Executable()
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return fmt.Errorf("finding the path of this program: %w", err)
	}
	return withDaemon(dir, name, func(c *uapi.Client) error { return upgradeError(name, c.Upgrade(path)) })
}

// upgradeError adds to an error which daemon serves the tunnel now.
func upgradeError(name string, err error) error {
	e, refused := errors.AsType[*uapi.Error](err)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the daemon of %s has not answered in time; the upgrade may still complete: see its log: %w", name, err)
	case !refused:
		return err
	case errors.Is(e, syscall.EPROTO):
		return fmt.Errorf("the daemon of %s is not ropewalk, or too old for an upgrade: restart it instead: %w", name, e)
	case errors.Is(e, syscall.EOPNOTSUPP):
		return fmt.Errorf("the program that runs %s has no upgrade: only ropewalk run does (if it is ropewalk-agent, upgrade the agent): %w", name, e)
	case errors.Is(e, syscall.ENODEV):
		return fmt.Errorf("the daemon of %s has just been replaced by another one: run upgrade again if that is not this program: %w", name, e)
	}
	return fmt.Errorf("upgrade failed, the old daemon of %s continues (its log may have more): %w", name, e)
}
