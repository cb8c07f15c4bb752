// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

const (
	readyOK      = "ok"
	readyTimeout = 2 * time.Second
	maxReadyText = 1024 // bytes of an answer
)

func newReadyCmd() *cobra.Command {
	var alive bool
	cmd := &cobra.Command{
		Use:   "ready SOCKET",
		Short: "Check that a kept daemon serves its interface",
		Long: "ready asks the `ropewalk run --keep --keep-socket SOCKET` that serves the socket. It succeeds if the daemon of that\n" +
			"process serves the interface and answers. It also succeeds if another one serves it and keeps it or has taken it over,\n" +
			"or if there is no configuration yet (--config). It fails while a daemon starts, and while the interface is down or its\n" +
			"UDP port is not open. A new daemon would change nothing then, so a liveness probe has --alive. As a container's probe\n" +
			"it does not depend on addresses, which two pods on one host share during an update.",
		Example: "  ropewalk ready /run/keep/wg0.sock",
		Args:    usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error { return checkReady(cmd.Context(), args[0], alive) },
	}
	cmd.Flags().BoolVar(&alive, "alive", false, "succeed also while the interface is down or its UDP port is not open")
	return cmd
}

// checkReady asks the supervisor that serves a socket. With alive, errDown is no failure.
func checkReady(ctx context.Context, path string, alive bool) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return codedError{exitUnreachable, fmt.Errorf("asking the supervisor of the daemon: %w", err)}
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(readyTimeout))
	text, err := io.ReadAll(io.LimitReader(c, maxReadyText))
	if err != nil {
		return codedError{exitFailed, fmt.Errorf("asking the daemon: %w", err)}
	}
	if answer := strings.TrimSpace(string(text)); answer != readyOK && (!alive || answer != errDown.Error()) {
		return codedError{exitFailed, fmt.Errorf("the daemon is not ready: %s", answer)}
	}
	return nil
}

// serveReady answers each connection to a Unix socket with one line, for checkReady, until ctx ends. It replaces a socket that an earlier
// supervisor left. An empty path is none.
func (s *supervisor) serveReady(ctx context.Context, path string) error {
	if path == "" {
		return nil
	}
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode().Type() != os.ModeSocket:
		err = fmt.Errorf("%s: %w", path, uapi.ErrNotSocket)
	case err == nil:
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replacing the socket of an earlier process: %w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("listening for `ropewalk ready`: %w", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // it may belong to a later process
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() {
		for ctx.Err() == nil {
			c, err := l.Accept()
			if err != nil {
				sleep(ctx, readyTimeout) // the check is repeated
				continue
			}
			go s.answerReady(c)
		}
	}()
	return nil
}

func (s *supervisor) answerReady(c net.Conn) {
	defer c.Close()
	answer := readyOK
	if err := s.check(); err != nil {
		answer = err.Error()
	}
	_ = c.SetDeadline(time.Now().Add(readyTimeout))
	_, _ = fmt.Fprintln(c, answer)
}

// The answers while no daemon serves the interface, and while one has lanes that make no progress, or no port.
var (
	errStarting = errors.New("it starts, or takes the tunnel over from another one")
	errStuck    = errors.New("lanes make no progress")
	errDown     = errors.New("the interface is down, or its UDP port could not be opened") // as on /readyz
)

// check returns nil if this supervisor's daemon answers, or if it waits for another one or for its configuration.
func (s *supervisor) check() error {
	switch supervisorState(s.state.Load()) {
	case supervisorWaiting:
		return nil
	case supervisorStarting:
		return errStarting
	}
	return checkDaemon(uapi.DefaultDir, s.name)
}

// checkDaemon returns nil if the daemon of an interface answers, its lanes make progress and its port is open.
func checkDaemon(dir uapi.Dir, name string) error {
	c, err := dir.Dial(name)
	if err != nil {
		return err
	}
	defer c.Close()
	var st struct {
		Up     bool               `json:"up"`
		Stalls config.StallReport `json:"stalls"`
	}
	if err := c.Stats(&st); err != nil {
		return err
	}
	if stuck := st.Stalls.Lanes; len(stuck) > 0 {
		return fmt.Errorf("%w: %s", errStuck, strings.Join(stuck, ", "))
	}
	if !st.Up {
		return errDown
	}
	return nil
}
