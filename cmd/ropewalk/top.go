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
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/ropewalk/ropewalk/pkg/device"
	"github.com/ropewalk/ropewalk/pkg/uapi"
	"github.com/ropewalk/ropewalk/pkg/view"
	"github.com/ropewalk/ropewalk/pkg/view/live"
	"github.com/ropewalk/ropewalk/pkg/view/machine"
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
		Use:   "top [INTERFACE]",
		Short: "Show live what peers, lanes, NIC queues and cores do",
		Long: "top shows rates of peers, lanes, the queues of the NIC towards the peers, and cores; how many packets go in one train\n" +
			"and how many messages in one system call; what is dropped, and why; and which lane, queue and core is the busiest, and\n" +
			"by how much. It asks the daemon once per interval. INTERFACE may be left out where one alone is served.\n" +
			"Keys: q quit, tab or 1 to 5 view, s sort, r reverse, space pause, + and - interval, ? help.\n" +
			"--once prints one frame of one interval as plain text, --json as JSON. NO_COLOR turns colours off.",
		Example:           "  ropewalk top\n  ropewalk top wg0 --view lanes\n  ropewalk top wg0 --json | jq .balance",
		Args:              usageArgs(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeInterface,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, socketDir(), args)
		},
	}
	cmd.Flags().BoolVar(&o.once, "once", false, "print one frame as plain text, and end")
	cmd.Flags().BoolVar(&o.json, "json", false, "print one frame as JSON, and end")
	cmd.Flags().DurationVar(&o.interval, "interval", time.Second, "time between two samples")
	cmd.Flags().StringVar(&o.view, "view", view.Overview.String(), "the `view` to begin with: "+strings.Join(view.Views(), ", "))
	completeFlag(cmd, "view", view.Views()...)
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
	t := &topSource{dir: dir, name: name, machine: machine.New()}
	defer t.close()
	if o.once || o.json {
		return o.one(cmd.Context(), cmd.OutOrStdout(), t.sample, options)
	}
	if !isTerminal(cmd.OutOrStdout()) {
		return usageError{errors.New("standard output is not a terminal: --once or --json print one frame")}
	}
	return live.Run(cmd.Context(), live.Config{
		Sample: t.sample, Interval: o.interval, Options: options,
		In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), Env: os.Environ(),
	})
}

// options are how to draw, and errors of the command line.
func (o *topFlags) options(out io.Writer) (view.Options, error) {
	if o.once && o.json {
		return view.Options{}, usageError{errors.New("--once and --json are two forms of the same: choose one")}
	}
	if o.interval < live.MinInterval || o.interval > live.MaxInterval {
		return view.Options{}, usageError{fmt.Errorf("--interval %s: want %s to %s", o.interval, live.MinInterval, live.MaxInterval)}
	}
	for i, name := range view.Views() {
		if name == o.view {
			color := !o.once && os.Getenv("NO_COLOR") == ""
			return view.Options{View: view.View(i), Width: outputWidth(out), Color: color, ASCII: !utf8Locale()}, nil
		}
	}
	return view.Options{}, unknownWord("view", o.view, view.Views())
}

// outputWidth is that of the terminal, or what COLUMNS says, or one that suits a page.
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

// utf8Locale follows the locale of locale(7): the first variable that is set decides. Where none is, as in services, most
// readers know UTF-8.
func utf8Locale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := strings.ToLower(os.Getenv(name)); value != "" {
			return strings.Contains(value, "utf-8") || strings.Contains(value, "utf8")
		}
	}
	return true
}

// topInterface is the one named, or the only one.
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
		return "", usageError{fmt.Errorf("several interfaces are served: name one of %s", strings.Join(names, ", "))}
	}
	return names[0], nil
}

// one prints what happens within an interval.
func (o *topFlags) one(ctx context.Context, out io.Writer, sample func() (view.Sample, error), options view.Options) error {
	before, err := sample()
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(o.interval):
	}
	now, err := sample()
	if err != nil {
		return err
	}
	frame := view.Compare(&before, &now)
	frame.Sort(view.ByDefault, false)
	if o.json {
		return writeJSON(out, struct {
			header
			*view.Frame
		}{headerOf("Top"), frame})
	}
	_, err = io.WriteString(out, view.Render(frame, options))
	return err
}

// topSource asks a daemon, on one connection while it lasts. It may be closed while it asks.
type topSource struct {
	dir     uapi.Dir
	name    string
	machine *machine.Reader

	mu     sync.Mutex
	client *uapi.Client
}

func (t *topSource) sample() (view.Sample, error) {
	client, err := t.connection()
	if err != nil {
		return view.Sample{}, err
	}
	s, err := t.ask(client)
	if err != nil {
		t.close() // the next sample connects anew
	}
	return s, err
}

func (t *topSource) connection() (client *uapi.Client, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.client == nil {
		t.client, err = reach(t.dir, t.name)
	}
	return t.client, err
}

func (t *topSource) ask(client *uapi.Client) (view.Sample, error) {
	status, err := client.Status()
	if err != nil {
		return view.Sample{}, err
	}
	var stats device.Stats
	if err := client.Stats(&stats); err != nil {
		return view.Sample{}, err
	}
	if stats.Interface == "" {
		return view.Sample{}, fmt.Errorf("interface %s is not served by ropewalk: its daemon does not tell what its lanes do", t.name)
	}
	return t.machine.Sample(&status, stats), nil
}

func (t *topSource) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.client != nil {
		t.client.Close()
		t.client = nil
	}
}
