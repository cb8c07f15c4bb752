// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/lab/demo"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

// demoOptions are the flags of `ropewalk demo`.
type demoOptions struct {
	seconds float64
	streams int
	queues  int
	json    bool
	daemon  string
}

func newDemoCmd() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a tunnel between two network namespaces and check its traffic",
		Long: "demo runs a tunnel between two network namespaces and checks its traffic. It connects them with a multi-queue link,\n" +
			"and starts ropewalk in both. It sends TCP and UDP with a known pattern through the tunnel, without and with spreading\n" +
			"over source ports. It captures packets on the link to check that all of them are encrypted, and ends with the load of\n" +
			"each receive queue. demo needs root. It changes no existing interface and removes everything that it created. The exit\n" +
			"code is 0 only if all data arrived unchanged, in order and encrypted, and was spread over the queues.",
		Example: "  sudo ropewalk demo\n  sudo ropewalk demo --seconds 20 --streams 16 --json",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demoMain(cmd.Context(), cmd.OutOrStdout(), o)
		},
	}
	f := cmd.Flags()
	f.Float64Var(&o.seconds, "seconds", 8, "duration of the traffic in seconds: half TCP, half UDP; half without and half with spreading")
	f.IntVar(&o.streams, "streams", 8, "number of parallel streams; each is one flow")
	f.IntVar(&o.queues, "queues", 8, "number of queues of the link")
	f.BoolVar(&o.json, "json", false, "print only the report, as JSON")
	f.StringVar(&o.daemon, "daemon", "/proc/self/exe run", "command that serves the interface given as its last argument")
	_ = f.MarkHidden("daemon")
	return cmd
}

func (o demoOptions) check() error {
	if _, err := secondsFlag(o.seconds); err != nil {
		return err
	}
	if o.streams < 1 || o.streams > traffic.MaxStreams {
		return fmt.Errorf("--streams %d: want 1 to %d", o.streams, traffic.MaxStreams)
	}
	if o.queues < 1 || o.queues > demo.MaxQueues {
		return fmt.Errorf("--queues %d: want 1 to %d", o.queues, demo.MaxQueues)
	}
	if len(strings.Fields(o.daemon)) == 0 {
		return errors.New("--daemon: want a command")
	}
	return nil
}

// demoMain runs the demo and prints its report. It returns an error if a check failed.
func demoMain(ctx context.Context, out io.Writer, o demoOptions) error {
	if err := o.check(); err != nil {
		return usageError{err}
	}
	tty := isTerminal(out)
	live := &demo.Live{Out: out, Quiet: o.json, Terminal: tty, Style: term.Style{Color: colorMode(tty)}}
	options := demo.Options{Seconds: o.seconds, Streams: o.streams, Queues: o.queues, Daemon: strings.Fields(o.daemon)}
	report, err := demo.Run(ctx, options, live)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("the demo was interrupted: %w", err)
	case err != nil:
		return fmt.Errorf("running the demo: %w", err)
	case o.json:
		err = writeJSON(out, report)
	default:
		_, err = io.WriteString(out, report.Render(live.Style))
	}
	if err != nil {
		return fmt.Errorf("printing the report: %w", err)
	}
	return report.Err()
}
