// SPDX-License-Identifier: Apache-2.0

// Command bench measures ropewalk against other userspace WireGuard implementations, its peers, on
// the machine that it runs on. It prints the table of docs/dev/measurements.md. It installs the
// peers from their registries, at fixed versions.
//
// `bench hosts` measures between two hosts, which it reaches by ssh, and writes a report: see hosts.go.
//
// Such a machine's speed changes from minute to minute, so figures that were measured at different
// times say little. In every round, and there in every test, ropewalk and a peer are measured one
// right after the other. The result is the median over the rounds of the ratio of the two.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/ropewalk/ropewalk/test/bench/remote"
)

func main() {
	// A reader that goes away (make bench-peers | tee, Ctrl-C) ends the run in good order too.
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	err := command(ctx, os.Args[1:])
	cancel()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// command runs the program, or one of the parts that it has on another host (package remote).
func command(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "host":
		dir, err := remote.AgentDir()
		if err != nil {
			return err
		}
		return remote.Serve(ctx, os.Stdin, os.Stdout, remote.AgentConfig{Dir: dir, Connection: os.Getenv("SSH_CONNECTION")})
	case len(args) > 2 && args[0] == "on":
		return remote.ExecOn(args[1], args[2:])
	case len(args) > 0 && args[0] == "hosts":
		return runHosts(ctx, args[1:], os.Stdout, os.Stderr)
	}
	return run(ctx, args, os.Stdout, os.Stderr)
}

// run is the program: it ends with everything that it started gone, also when ctx ends it.
func run(ctx context.Context, args []string, out, diag io.Writer) error {
	o, err := parseOptions(args, diag)
	if err != nil {
		return err
	}
	c, err := prepare(ctx, o, out, diag)
	if err != nil {
		return err
	}
	c.report.Command = commandLine(args)
	err = c.measure(ctx)
	c.progress.clear()
	return errors.Join(err, c.finish(err == nil))
}

// onTerminal tells whether a line can be rewritten there.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
