// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/demo"
	"github.com/ropewalk/ropewalk/pkg/picture"
	"github.com/ropewalk/ropewalk/pkg/traffic"
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
		Short: "Run two tunnel ends in network namespaces and show what they do",
		Long: "demo makes two hosts out of network namespaces, lays a multi-queue cable between them, starts ropewalk in both,\n" +
			"sends verified TCP and UDP traffic through the tunnel, without and with spreading it over source ports, and\n" +
			"captures on the cable to check that all of it is encrypted. It ends with a picture of what each receive queue\n" +
			"got. It needs root and nothing else, touches no existing interface, and removes all it made. The exit code is 0\n" +
			"only if traffic flowed, was encrypted, arrived whole and in order, and spread over the queues.",
		Example: "  sudo ropewalk demo\n  sudo ropewalk demo --seconds 20 --streams 16 --json",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demoMain(cmd.Context(), cmd.OutOrStdout(), o)
		},
	}
	f := cmd.Flags()
	f.Float64Var(&o.seconds, "seconds", 8, "seconds of traffic: half TCP, half UDP; half without and half with spreading")
	f.IntVar(&o.streams, "streams", 8, "parallel streams, each a flow of its own")
	f.IntVar(&o.queues, "queues", 8, "queues of the cable")
	f.BoolVar(&o.json, "json", false, "print the report as JSON, and nothing else")
	f.StringVar(&o.daemon, "daemon", "/proc/self/exe run", "command that serves an interface, given as its last argument")
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

// demoMain runs the demo and prints its report. A check that failed is an error.
func demoMain(ctx context.Context, out io.Writer, o demoOptions) error {
	if err := o.check(); err != nil {
		return usageError{err}
	}
	tty := isTerminal(out)
	live := &demo.Live{Out: out, Quiet: o.json, Terminal: tty, Style: picture.Style{Color: colorMode(tty)}}
	options := demo.Options{Seconds: o.seconds, Streams: o.streams, Queues: o.queues, Daemon: strings.Fields(o.daemon)}
	report, err := demo.Run(ctx, options, live)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("the demo was interrupted: %w", err)
	case err != nil:
		return fmt.Errorf("running the demo: %w", err)
	case o.json:
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		err = enc.Encode(report)
	default:
		_, err = io.WriteString(out, report.Render(live.Style))
	}
	if err != nil {
		return fmt.Errorf("printing the report: %w", err)
	}
	return report.Err()
}
