// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/uapi"
)

func newUpgradeCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "upgrade INTERFACE",
		Short: "Replace the running daemon of an interface by this program",
		Long: "upgrade has the daemon that serves the interface start this program in its place, with the flags it was started with\n" +
			"itself, and hand the tunnel over. The interface, its addresses and routes, TCP connections and what was configured stay;\n" +
			"so does the service of systemd. It returns when the new daemon has the tunnel. If it fails, the old one goes on.",
		Example:           "  ropewalk upgrade wg0   # after the package was replaced",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeInterface,
		RunE:              func(_ *cobra.Command, args []string) error { return upgrade(socketDir(), args[0]) },
	}
}

// upgrade has the daemon of an interface replaced by this program.
func upgrade(dir uapi.Dir, name string) error {
	path, err := os.Executable()
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	return withDaemon(dir, name, func(c *uapi.Client) error { return upgradeError(name, c.Upgrade(path)) })
}

// upgradeError says what became of the tunnel.
func upgradeError(name string, err error) error {
	e, refused := errors.AsType[*uapi.Error](err)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the daemon of %s has not answered in time, and may still hand over; its log says what became of it: %w", name, err)
	case !refused:
		return err
	case errors.Is(e, syscall.EPROTO):
		return fmt.Errorf("the daemon of %s is not ropewalk's, or one of before this command: restart it instead: %w", name, e)
	case errors.Is(e, syscall.ENODEV):
		return fmt.Errorf("the daemon of %s has just handed over to another one; ask that, if it is not this program: %w", name, e)
	}
	return fmt.Errorf("the daemon of %s goes on as it is; its log says why: %w", name, e)
}
