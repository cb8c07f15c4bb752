// SPDX-License-Identifier: Apache-2.0

package agent

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
)

// During a rolling update two agents have the node's address, and the old one answers the probes of both until the new one has taken the
// tunnel over. So the startup probe of the new one uses a socket in its own pod. It delays the other probes until they reach this agent.

const (
	startupOK      = "ok"
	startupTimeout = 2 * time.Second
	maxStartupText = 256 // bytes of an answer
)

// errProbesElsewhere means that another process answers at the address of the probes, and that this agent does not wait for its end.
var errProbesElsewhere = errors.New("another process, the agent that an update replaces, answers this agent's probes: the tunnel has not been taken over")

// startup returns nil once this agent answers its own probes, or is ready while it waits for the end of the agent that does.
func (s *Stats) startup() error {
	if s.serving.Load() || s.Ready.Load() {
		return nil
	}
	return errProbesElsewhere
}

// ServeStartup answers each connection to a Unix socket with one line, for CheckStartup, until ctx ends. It replaces a socket that an
// earlier agent of the same pod left.
func ServeStartup(ctx context.Context, path string, s *Stats) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the startup socket of an earlier agent: %w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("listening for the startup probe: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() {
		for ctx.Err() == nil {
			c, err := l.Accept()
			if err != nil {
				sleep(ctx, startupTimeout) // the probe is repeated
				continue
			}
			answerStartup(c, s)
		}
	}()
	return nil
}

func answerStartup(c net.Conn, s *Stats) {
	defer c.Close()
	answer := startupOK
	if err := s.startup(); err != nil {
		answer = err.Error()
	}
	_ = c.SetDeadline(time.Now().Add(startupTimeout))
	_, _ = fmt.Fprintln(c, answer)
}

// CheckStartup asks the agent that serves a socket, and returns an error unless its other probes may begin.
func CheckStartup(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, startupTimeout)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("asking the agent: %w", err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(startupTimeout))
	text, err := io.ReadAll(io.LimitReader(c, maxStartupText))
	if err != nil {
		return fmt.Errorf("asking the agent: %w", err)
	}
	if answer := strings.TrimSpace(string(text)); answer != startupOK {
		return fmt.Errorf("the agent has not started: %s", answer)
	}
	return nil
}
