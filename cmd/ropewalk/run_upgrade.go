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

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/tunnel/daemon"
)

// takeoverFlag is the flag of `ropewalk run` that a successor gets.
const takeoverFlag = "--takeover"

// takeoverError adds advice to an error of a takeover.
func takeoverError(err error) error {
	switch {
	case uapi.IsNotRunning(err):
		return codedError{exitUnreachable, fmt.Errorf("%w (without %s the interface is created)", err, takeoverFlag)}
	case errors.Is(err, daemon.ErrUnprepared):
		return err
	case errors.Is(err, daemon.ErrVersion), errors.Is(err, syscall.EPROTO):
		err = fmt.Errorf("%w: the old daemon continues; restart it instead", err)
	}
	return keptExit(exitRefused, err)
}

// failureFD is an environment variable with a file descriptor: the pipe to which a successor that fails writes its error.
const failureFD = "ROPEWALK_FAILURE_FD"

// startSuccessor starts the program at path with the arguments of successorArgs. The service manager is notified after the
// takeover (announceSuccessor).
func startSuccessor(path string, args []string) (*daemon.Successor, error) {
	failure, theirs, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("creating a pipe for the new daemon: %w", err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = successorEnv(os.Environ())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	passFile(cmd, failureFD, theirs)
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		return nil, errors.Join(err, failure.Close())
	}
	ended := make(chan error, 1)
	go func() {
		defer failure.Close()
		ended <- withReportedFailure(cmd.Wait(), failure)
	}()
	return &daemon.Successor{Ended: ended, Kill: func() { _ = cmd.Process.Kill() }}, nil
}

// withReportedFailure adds the text in the pipe to the exit error of a successor. It waits for nothing: the program may have left children that hold
// the pipe open.
func withReportedFailure(exit error, pipe *os.File) error {
	raw, err := pipe.SyscallConn()
	if exit == nil || err != nil {
		return exit
	}
	text, n := make([]byte, 4096), 0
	_ = raw.Read(func(fd uintptr) bool {
		n, _ = unix.Read(int(fd), text) // non-blocking
		return true
	})
	if n <= 0 {
		return exit
	}
	return fmt.Errorf("%w: %s", exit, text[:n])
}

// reportFailure writes the error with which this process ends to the pipe of failureFD, if it is a successor.
func reportFailure(text string) {
	if fd, err := inheritFD(failureFD); err == nil && fd != 0 {
		_, _ = unix.Write(fd, []byte(text)) // fails if nobody waits any longer
	}
}

// endFailureReports closes the pipe of failureFD: this process has the tunnel.
func endFailureReports() {
	if fd, err := inheritFD(failureFD); err == nil && fd != 0 {
		_ = unix.Close(fd)
	}
}

// successorArgs returns the arguments of a daemon that takes over from one with args. requested is the interface in args, and name
// the interface that was created: requested may contain %d.
func successorArgs(args []string, requested, name string) []string {
	args = slices.DeleteFunc(slices.Clone(args[1:]), func(a string) bool { return a == takeoverFlag })
	if i := slices.Index(args, requested); i >= 0 {
		args[i] = name
	}
	i := slices.Index(args, "run")
	return slices.Insert(args, i+1, takeoverFlag)
}

// successorEnv returns the environment of a daemon that takes over from one with env. If this
// process is the service, it removes the service's process IDs (systemd.exec(5)). They differ from
// the successor's, which would then not count as the service. If it is not, they stay, so that the
// successor does not count as the service either.
func successorEnv(env []string) []string {
	remove := []string{logFromUp, readyFD, failureFD}
	if notifiesService() {
		remove = append(remove, "WATCHDOG_PID", "SYSTEMD_EXEC_PID")
	}
	return slices.DeleteFunc(env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(remove, name)
	})
}

// announceSuccessor records the process ID of the new daemon for `ropewalk down`, which ends a daemon that `ropewalk up` started. If
// this process is the service, it also notifies the service manager: the manager trusts the main process that it knows.
func announceSuccessor(log *slog.Logger, name string, pid int) {
	if pid == 0 {
		log.Warn("finding the process ID of the new daemon failed, the service manager considers the service stopped: `ropewalk down` ends the new daemon, but may not wait for its exit", "interface", name)
		return
	}
	if err := quick.RecordSuccessor(quick.DefaultRunDir, name, os.Getpid(), pid); err != nil {
		log.Warn("recording the process ID of the new daemon failed, `ropewalk down` may not stop the new daemon", "interface", name, "error", err)
	}
	if notifiesService() {
		sdNotify(log, fmt.Sprintf("MAINPID=%d", pid))
	}
}
