// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/observe/top"
	"github.com/ropewalk/ropewalk/pkg/observe/top/live"
)

// topFlags are the flags of `ropewalk top`.
type topFlags struct {
	once, json bool
	interval   time.Duration
	view       string
}

func newTopCmd() *cobra.Command {
	var o topFlags
	cmd := &cobra.Command{
		Use:   "top [INTERFACE | DEVICE]",
		Short: "Show live rates of peers, lanes, NIC queues and cores",
		Long: "top shows live rates of peers, lanes, the queues of the NIC that reaches the peers, and cores. It also shows packets per\n" +
			"train, messages per system call, drops by reason, and the busiest lane, queue and core. It queries the daemon once per\n" +
			"interval. INTERFACE may be omitted if only one interface is served.\n" +
			"For a DEVICE of `ropewalk spread attach` it shows peers, source ports, and the rates of the counters, as `ropewalk flows` does.\n" +
			"Keys: q quit, tab or 1 to 6 view, s sort, r reverse, space pause, + and - interval, ? help.\n" +
			"--once prints the rates of one interval as text, --json as JSON. NO_COLOR turns colours off.",
		Example:           "  ropewalk top\n  ropewalk top wg0 --view lanes\n  ropewalk top wg0 --json | jq .balance\n  ropewalk top eth0",
		Args:              usageArgs(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeDevice,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, socketDir(), args)
		},
	}
	cmd.Flags().BoolVar(&o.once, "once", false, "print the rates of one interval as text, and exit")
	cmd.Flags().BoolVar(&o.json, "json", false, "print the rates of one interval as JSON, and exit")
	cmd.Flags().DurationVar(&o.interval, "interval", time.Second, "time between two samples")
	cmd.Flags().StringVar(&o.view, "view", top.Overview.String(), "first `view`: "+strings.Join(top.Views(), ", "))
	completeFlag(cmd, "view", top.Views()...)
	return cmd
}

func (o *topFlags) run(cmd *cobra.Command, dir uapi.Dir, args []string) error {
	options, err := o.options(cmd.OutOrStdout())
	if err != nil {
		return err
	}
	name, err := topInterface(dir, args)
	if err != nil {
		return err
	}
	if !o.once && !o.json && !isTerminal(cmd.OutOrStdout()) {
		return usageError{errors.New("standard output is not a terminal: use --once or --json")}
	}
	source, err := o.source(cmd.Context(), dir, name, new(spreader.Host).Flows)
	if err != nil {
		return err
	}
	defer source.close()
	if o.once || o.json {
		return o.one(cmd.Context(), cmd.OutOrStdout(), source.next, options)
	}
	return live.Run(cmd.Context(), live.Config{
		Next: source.next, Interval: o.interval, Options: options,
		In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), Env: os.Environ(),
	})
}

// options returns the options for rendering, or a usage error.
func (o *topFlags) options(out io.Writer) (top.Options, error) {
	if o.once && o.json {
		return top.Options{}, usageError{errors.New("--once and --json cannot be combined")}
	}
	if o.interval < live.MinInterval || o.interval > live.MaxInterval {
		return top.Options{}, usageError{fmt.Errorf("--interval %s: want %s to %s", o.interval, live.MinInterval, live.MaxInterval)}
	}
	for i, name := range top.Views() {
		if name == o.view {
			color := !o.once && os.Getenv("NO_COLOR") == ""
			return top.Options{View: top.View(i), Width: outputWidth(out), Color: color, ASCII: !utf8Locale()}, nil
		}
	}
	return top.Options{}, unknownWord("view", o.view, top.Views())
}

// outputWidth returns the width of the terminal, else $COLUMNS, else 120.
func outputWidth(out io.Writer) int {
	if f, ok := out.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	if width, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && width > 0 {
		return width
	}
	return 120
}

// utf8Locale reports whether the locale uses UTF-8. The first set variable decides (locale(7)). If none is set, as in services,
// it assumes UTF-8.
func utf8Locale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := strings.ToLower(os.Getenv(name)); value != "" {
			return strings.Contains(value, "utf-8") || strings.Contains(value, "utf8")
		}
	}
	return true
}

// topInterface returns the interface in args, or the only interface that is served.
func topInterface(dir uapi.Dir, args []string) (string, error) {
	if len(args) > 0 {
		return args[0], nil
	}
	names, err := dir.Interfaces()
	switch {
	case err != nil:
		return "", err
	case len(names) == 0:
		return "", codedError{exitUnreachable, errors.New("no interface is served by a userspace process (no socket in " + string(dir) + ")")}
	case len(names) > 1:
		return "", usageError{fmt.Errorf("several interfaces run: name one of %s", strings.Join(names, ", "))}
	}
	return names[0], nil
}

// one prints the rates of one interval.
func (o *topFlags) one(ctx context.Context, out io.Writer, next func(bool) (live.Screen, error), options top.Options) error {
	flows := options.View == top.Flows
	if _, err := next(flows); err != nil {
		return err
	}
	if err := pause(ctx, o.interval); err != nil {
		return err
	}
	screen, err := next(flows)
	if err != nil {
		return err
	}
	screen.Sort(top.ByDefault, false)
	if o.json {
		return writeJSON(out, topDocument(screen))
	}
	_, err = io.WriteString(out, screen.Render(options))
	return err
}

// topDocument returns the document that --json prints.
func topDocument(screen live.Screen) any {
	switch f := screen.(type) {
	case *top.Frame:
		return struct {
			header
			*top.Frame
		}{headerOf("Top"), f}
	case *top.SpreadFrame:
		return deviceFlowsDocument{headerOf("SpreadFlows"), *f}
	}
	return screen
}
