// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

// supervised runs a shell script under supervise, and returns its result and how often the script began.
func supervised(t *testing.T, ctx context.Context, l agentLife, script string) (starts int, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "starts")
	err = supervise(ctx, l, slog.New(slog.DiscardHandler), "/bin/sh", "-c", `echo >>"$0"; starts=$(wc -l <"$0"); `+script, file)
	text, rerr := os.ReadFile(file)
	expect.NoError(t, rerr)
	return strings.Count(string(text), "\n"), err
}

func TestKilledAgentIsStartedAgain(t *testing.T) {
	for _, script := range []string{"[ $starts = 3 ] || kill -KILL $$", "[ $starts = 3 ] || kill -SEGV $$", "[ $starts = 3 ] || exit 2"} {
		if starts, err := supervised(t, t.Context(), agentLife{}, script); starts != 3 || err != nil {
			t.Errorf("%s: got %d starts and error %v, want 3 and none", script, starts, err)
		}
	}
}

func TestAgentThatEndsItselfIsNotStartedAgain(t *testing.T) {
	for _, tt := range []struct {
		min    time.Duration
		script string
		want   int
	}{
		{0, "exit 0", 0},
		{0, "exit 1", 1},
		{time.Hour, "exit 2", 2}, // a wrong flag, or a crash at once: the kubelet's backoff applies
		{time.Hour, "kill -KILL $$", 137},
	} {
		starts, err := supervised(t, t.Context(), agentLife{first: tt.min}, tt.script)
		if code := exitCode(err); starts != 1 || code != tt.want {
			t.Errorf("%s: got %d starts and exit code %d (%v), want 1 and %d", tt.script, starts, code, err, tt.want)
		}
	}
}

// trapped runs a script, which never ends by itself, under supervise. It calls ready when the script has set its trap.
func trapped(t *testing.T, ctx context.Context, trap string, ready func()) (starts int, err error) {
	t.Helper()
	r, w, err := os.Pipe()
	expect.NoError(t, err)
	out := os.Stdout
	os.Stdout = w // of the script
	go func() {
		_, _ = bufio.NewReader(r).ReadString('\n')
		ready()
	}()
	starts, err = supervised(t, ctx, agentLife{}, trap+"; echo ready; while :; do sleep 0.01; done")
	os.Stdout = out
	expect.NoError(t, errors.Join(r.Close(), w.Close()))
	return starts, err
}

func TestStoppedAgentIsNotStartedAgain(t *testing.T) {
	for _, want := range []int{0, 3} {
		ctx, cancel := context.WithCancel(t.Context())
		starts, err := trapped(t, ctx, fmt.Sprintf("trap 'exit %d' TERM", want), cancel)
		if code := exitCode(err); starts != 1 || code != want {
			t.Errorf("got %d starts and exit code %d (%v), want 1 and %d, that of the agent's own handler of SIGTERM", starts, code, err, want)
		}
	}
}

// TestSignalsReachAgentNotSupervisor sends a signal that ends a program in Go to the process that supervises.
func TestSignalsReachAgentNotSupervisor(t *testing.T) {
	for name, s := range map[string]syscall.Signal{"HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT} {
		starts, err := trapped(t, t.Context(), "trap 'exit 3' "+name, func() { _ = syscall.Kill(os.Getpid(), s) })
		if code := exitCode(err); starts != 1 || code != 3 {
			t.Errorf("SIG%s: got %d starts and exit code %d (%v), want 1 and 3, that of the agent's own handler", name, starts, code, err)
		}
	}
}

// exitCode returns the exit code that an error of supervise stands for.
func exitCode(err error) int {
	if exit, ok := errors.AsType[childError](err); ok {
		return exit.ExitCode()
	}
	if err != nil {
		return exitError
	}
	return 0
}

func TestMissingProgramIsAnError(t *testing.T) {
	err := supervise(t.Context(), agentLife{}, slog.New(slog.DiscardHandler), "/missing")
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that the program does not exist", err)
	}
}

// TestAgentThatCrashesAgainEndsContainer crashes an agent twice. Without an end, thousands of agents that crash alike would read all objects from the API server
// again and again, without the kubelet's backoff, and the pods would count no restarts.
func TestAgentThatCrashesAgainEndsContainer(t *testing.T) {
	starts, err := supervised(t, t.Context(), agentLife{next: time.Hour}, "[ $starts = 9 ] || kill -SEGV $$")
	if code := exitCode(err); starts != 2 || code != 139 {
		t.Errorf("got %d starts and exit code %d (%v), want 2 and 139", starts, code, err)
	}
}

func TestSupervisorThatIsStoppedFirstStartsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := supervise(ctx, agentLife{}, slog.New(slog.DiscardHandler), "/bin/false"); err != nil {
		t.Errorf("got %v, want none: SIGTERM came before the agent began", err)
	}
}
