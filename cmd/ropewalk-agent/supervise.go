// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// agentLife is how long an agent must have run to be started again here. A sooner end is that of the container: the kubelet starts it again, with its
// backoff.
type agentLife struct {
	first time.Duration // of the container's first agent
	next  time.Duration // of an agent that was started again
}

// defaultAgentLife lets an agent that crashes again and again end its container. A kubelet forgets the backoff of one that has run for ten minutes.
func defaultAgentLife() agentLife { return agentLife{10 * time.Second, 10 * time.Minute} }

func newSuperviseCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "supervise [FLAGS OF ropewalk-agent]",
		Short: "Run the agent in a child process, and start it again at once if it is killed or crashes",
		Long: "supervise runs ropewalk-agent with the same flags. If the agent is killed or crashes after ten seconds or more, it is started again at once: a kubelet\n" +
			"takes half a second or more to restart a container, and mode mesh carries no packets meanwhile. One that crashes again within ten minutes is left to\n" +
			"the kubelet and its backoff. In all other cases supervise ends as the agent does. It passes SIGTERM, SIGINT, SIGHUP and\n" +
			"SIGQUIT on. SIGQUIT makes the agent print the stacks of its goroutines and end, so it is started again. The Helm chart runs supervise in mode mesh.",
		DisableFlagParsing: true, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("finding the program of the agent: %w", err)
			}
			log, err := newLogger("info")
			if err != nil {
				return err
			}
			debug.FreeOSMemory() // memory of the initialization, which is not used again
			return supervise(cmd.Context(), defaultAgentLife(), log, self, args...)
		},
	}
}

// childError is the end of an agent that is not started again. It has no text: the agent has reported its error, and the kernel its signal.
type childError struct{ state *os.ProcessState }

func (childError) Error() string { return "" }

// ExitCode returns the agent's exit code, or 128 and the signal that has ended it, as a shell does.
func (e childError) ExitCode() int {
	if ws, ok := e.state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return e.state.ExitCode()
}

// supervise runs a program until it ends by itself, or crashes too early, or ctx ends.
func supervise(ctx context.Context, l agentLife, log *slog.Logger, program string, args ...string) error {
	runtime.LockOSThread() // the child is killed when the thread ends that has started it
	defer runtime.UnlockOSThread()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGQUIT) // they would end this process, and with it the agent
	defer signal.Stop(signals)
	for minLife := l.first; ; {
		began := time.Now()
		err := runAgentProcess(ctx, signals, program, args...)
		exit, ended := errors.AsType[*exec.ExitError](err)
		ran := time.Since(began)
		switch {
		case !ended && ctx.Err() != nil: // SIGTERM came before the agent began
			return nil
		case !ended:
			return err
		case ctx.Err() != nil || ran < minLife || !crashed(exit.ProcessState):
			return childError{exit.ProcessState}
		}
		log.Warn("agent crashed or was killed, starting it again", "error", err, "ran", ran.Round(time.Second).String())
		minLife = l.next
	}
}

// crashed reports whether a signal or a panic has ended a process. An agent whose flags are wrong has the exit code of a panic, too, but does not get old.
func crashed(s *os.ProcessState) bool {
	ws, ok := s.Sys().(syscall.WaitStatus)
	return ok && (ws.Signaled() || ws.ExitStatus() == exitUsage)
}

// runAgentProcess runs a program to its end, and passes signals on. When ctx ends, it sends SIGTERM.
func runAgentProcess(ctx context.Context, signals <-chan os.Signal, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails if the agent has ended
		return os.ErrProcessDone                // the result is the agent's own
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the agent: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			return err
		case s := <-signals:
			_ = cmd.Process.Signal(s) // fails if the agent has ended
		}
	}
}
