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

	"github.com/ropewalk/ropewalk/pkg/daemon"
	"github.com/ropewalk/ropewalk/pkg/quick"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

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

// startSuccessor starts the program at path with arguments of successorArgs. Whoever supervises this process is told of it once it has
// taken over (announceSuccessor).
func startSuccessor(path string, args []string) (*daemon.Successor, error) {
	cmd := exec.Command(path, args...)
	cmd.Env = successorEnv(os.Environ())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return &daemon.Successor{Ended: ended, Kill: func() { _ = cmd.Process.Kill() }}, nil
}

// successorArgs are the arguments of a daemon that takes over, from one with these that was asked for the interface wanted and serves
// it as name: wanted may have a %d.
func successorArgs(args []string, wanted, name string) []string {
	args = slices.DeleteFunc(slices.Clone(args[1:]), func(a string) bool { return a == takeoverFlag })
	if i := slices.Index(args, wanted); i >= 0 {
		args[i] = name
	}
	i := slices.Index(args, "run")
	return slices.Insert(args, i+1, takeoverFlag)
}

// successorEnv is the environment of a daemon that takes over from one with this. The numbers of the service's processes
// (systemd.exec(5)) are not the successor's, and would keep it from being the service; those of a service that this process is none of
// stay, and keep the successor out of it too.
func successorEnv(env []string) []string {
	without := []string{logFromUp}
	if speaksForService() {
		without = append(without, "WATCHDOG_PID", "SYSTEMD_EXEC_PID")
	}
	return slices.DeleteFunc(env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(without, name)
	})
}

// announceSuccessor tells who has to know which process the daemon is now: `ropewalk down`, which ends one that `ropewalk up` has started,
// and the service manager, if this is the service. It hears it from this one, which it believes.
func announceSuccessor(log *slog.Logger, name string, heir int) {
	if heir == 0 {
		log.Warn("the new daemon's process is not known here: ropewalk down and the service manager do not learn of it", "interface", name)
		return
	}
	if err := quick.Succeed(quick.DefaultRunDir, name, os.Getpid(), heir); err != nil {
		log.Warn("ropewalk down does not know the new daemon", "error", err)
	}
	if speaksForService() {
		tell(log, fmt.Sprintf("MAINPID=%d", heir))
	}
}
