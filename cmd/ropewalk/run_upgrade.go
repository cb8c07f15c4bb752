// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/daemon"
	"github.com/ropewalk/ropewalk/pkg/quick"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// upgradeFlags say that the interface is another daemon's now.
type upgradeFlags struct {
	takeover bool
	ask      bool
}

func (u *upgradeFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&u.takeover, "takeover", false,
		"take the interface over from the daemon that serves it: connections, routes\nand counters stay (docs/upgrade.md)")
	cmd.Flags().BoolVar(&u.ask, "upgrade", false,
		"do what \"ropewalk upgrade\" does, and exit; other flags do not count")
}

// takeoverFlag is that of startSuccessor.
const takeoverFlag = "--takeover"

// takeoverError says what to do where there is something to be done.
func takeoverError(err error) error {
	switch {
	case uapi.IsRefused(err):
		return codedError{exitUnreachable, fmt.Errorf("%w (without %s the interface is created)", err, takeoverFlag)}
	case errors.Is(err, daemon.ErrVersion), errors.Is(err, syscall.EPROTO):
		return fmt.Errorf("%w: it goes on; restart it instead", err)
	}
	return err
}

// startSuccessor starts the program at path as this process was started, but to take over. Whoever supervises this process is told
// of it once it has (bequeath).
func startSuccessor(path string) (*daemon.Successor, error) {
	cmd := exec.Command(path, successorArgs(os.Args)...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return slices.ContainsFunc([]string{"WATCHDOG_PID=", "SYSTEMD_EXEC_PID=", logFromUp + "="}, func(name string) bool {
			return strings.HasPrefix(v, name)
		})
	})
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return &daemon.Successor{Ended: ended, Kill: func() { _ = cmd.Process.Kill() }}, nil
}

// successorArgs are the arguments of a daemon that takes over from one with these.
func successorArgs(args []string) []string {
	args = slices.DeleteFunc(slices.Clone(args[1:]), func(a string) bool { return a == takeoverFlag })
	i := slices.Index(args, "run")
	return slices.Insert(args, i+1, takeoverFlag)
}

// bequeath tells who has to know which process the daemon is now: `ropewalk down`, which ends one that `ropewalk up` has started, and the
// service manager, if there is one. It hears it from this one, which it believes.
func bequeath(log *slog.Logger, name string, heir int) {
	if heir == 0 {
		return
	}
	if err := quick.Succeed(quick.DefaultRunDir, name, os.Getpid(), heir); err != nil {
		log.Warn("ropewalk down does not know the new daemon", "error", err)
	}
	if os.Getenv("NOTIFY_SOCKET") != "" {
		tell(log, fmt.Sprintf("MAINPID=%d", heir))
	}
}
