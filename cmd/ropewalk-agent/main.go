// SPDX-License-Identifier: Apache-2.0

// Command ropewalk-agent is ropewalk's Kubernetes agent, one per node. `ropewalk agent` runs this binary. By the name
// kubectl-ropewalk it is a plugin of kubectl.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

// Exit codes.
const (
	exitError = 1
	exitUsage = 2
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCmd(os.Args[0]).ExecuteContext(ctx)
	cancel()
	if err == nil {
		return
	}
	if text := err.Error(); text != "" { // empty for command.VerdictError: the output has the problems already
		fmt.Fprintf(os.Stderr, "%s: %s\n", filepath.Base(os.Args[0]), text)
	}
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		os.Exit(coded.ExitCode())
	}
	if _, ok := errors.AsType[usageError](err); ok {
		os.Exit(exitUsage)
	}
	os.Exit(exitError)
}

// usageError is a mistake in the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func newLogger(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usageError{fmt.Errorf("--log-level: %w", err)}
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}

func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}
