// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/lab/bench"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// benchOptions are the flags of `ropewalk bench`.
type benchOptions struct {
	seconds float64
	quick   bool
	only    []string
	lanes   []int
	json    string
	plots   string
	self    []string // command that runs ropewalk
	prefix  string   // of the namespaces' names
	command string   // command line that repeats the measurement
}

const (
	benchSeconds      = 2
	benchQuickSeconds = 0.5
	// benchMinSeconds is ten ticks of the clock with which the kernel accounts CPU time.
	benchMinSeconds = 0.1
)

func newBenchCmd() *cobra.Command {
	o := benchOptions{self: []string{"/proc/self/exe"}}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the throughput of a tunnel on this machine, and its limits",
		Long: "bench measures the throughput of a tunnel on this machine, and its limits. It measures encryption, the TUN device and\n" +
			"UDP sockets alone, then TCP through a tunnel between two network namespaces. It varies lanes and streams, and measures\n" +
			"latency and the limits for small packets. Every stage but crypto needs root. bench changes no existing interface and\n" +
			"removes everything that it created. Run it on an idle machine.",
		Example: "  sudo ropewalk bench\n  sudo ropewalk bench --quick --json -\n" +
			"  sudo ropewalk bench --plots figures\n  ropewalk bench --only crypto",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("seconds") && o.quick {
				o.seconds = benchQuickSeconds
			}
			o.command = benchCommand(cmd)
			return benchMain(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.quick, "quick", false, "take about 20 seconds: shorter measurements, and fewer of them")
	f.Float64Var(&o.seconds, "seconds", benchSeconds, "duration of each measurement in seconds (--quick: 0.5)")
	f.StringSliceVar(&o.only, "only", nil, "stages to run (default: all): "+strings.Join(bench.Stages(), ", "))
	f.IntSliceVar(&o.lanes, "lanes", nil, "numbers of lanes to measure (default: 1, 2, 4 ... up to the number of cores)")
	f.StringVar(&o.json, "json", "", "write the report as JSON to a file; - writes it to standard output instead of the table")
	f.StringVar(&o.plots, "plots", "", "write the plots as SVG files into a directory")
	cmd.AddCommand(newBenchUnderlayCmd(), newBenchPeerCmd())
	return cmd
}

// benchCommand returns the command line that repeats the measurement, without the flags for output.
func benchCommand(cmd *cobra.Command) string {
	words := []string{"sudo", "ropewalk", "bench"}
	for _, name := range []string{"quick", "seconds", "only", "lanes"} {
		f := cmd.Flags().Lookup(name)
		switch {
		case !f.Changed:
		case f.Value.Type() == "bool":
			words = append(words, "--"+name)
		default:
			words = append(words, "--"+name, strings.Trim(f.Value.String(), "[]"))
		}
	}
	return strings.Join(words, " ")
}

// check validates the flags before anything is measured.
func (o benchOptions) check() error {
	if _, err := secondsFlag(o.seconds); err != nil {
		return err
	}
	if o.seconds < benchMinSeconds {
		return fmt.Errorf("--seconds %v: want at least %v", o.seconds, benchMinSeconds)
	}
	for _, s := range o.only {
		if !slices.Contains(bench.Stages(), s) {
			return fmt.Errorf("--only %s: want one or more of %s", s, strings.Join(bench.Stages(), ", "))
		}
	}
	for i, n := range o.lanes {
		if n < 1 || n > config.MaxLanes {
			return fmt.Errorf("--lanes %d: want 1 to %d", n, config.MaxLanes)
		}
		if slices.Contains(o.lanes[:i], n) {
			return fmt.Errorf("--lanes %d: given twice", n)
		}
	}
	return o.checkJSON()
}

// checkJSON checks before the measurement that the file for --json can be created.
func (o benchOptions) checkJSON() error {
	if o.json == "" || o.json == "-" {
		return nil
	}
	if st, err := os.Stat(o.json); err == nil && st.IsDir() {
		return fmt.Errorf("--json %s: want a file, not a directory", o.json)
	}
	if st, err := os.Stat(filepath.Dir(o.json)); err != nil || !st.IsDir() {
		return fmt.Errorf("--json %s: no such directory: %s", o.json, filepath.Dir(o.json))
	}
	return nil
}

// needsRoot reports whether any stage creates namespaces.
func (o benchOptions) needsRoot() bool {
	return !slices.Equal(slices.Compact(slices.Sorted(slices.Values(o.only))), []string{bench.StageCrypto})
}

// benchMain runs the measurements and writes the report.
func benchMain(ctx context.Context, out, progress io.Writer, o benchOptions) error {
	if err := o.check(); err != nil {
		return usageError{err}
	}
	if o.needsRoot() {
		if err := testbed.Probe(); err != nil {
			return fmt.Errorf("measuring a tunnel: %w", err)
		}
	}
	if o.plots != "" {
		if err := os.MkdirAll(o.plots, 0o755); err != nil {
			return fmt.Errorf("creating the directory for plots: %w", err)
		}
	}
	live := &benchProgress{out: progress, tty: isTerminal(progress)}
	report, err := bench.Run(ctx, bench.Config{
		Stages: o.only, Stretch: time.Duration(o.seconds * float64(time.Second)), Quick: o.quick, Lanes: o.lanes,
		Daemon: o.daemon, Traffic: slices.Concat(o.self, []string{"traffic"}), Prefix: o.prefix, Progress: live.show,
	})
	live.clear()
	if err != nil {
		err = fmt.Errorf("running the benchmark: %w", err)
	}
	if report == nil {
		return err
	}
	report.Version, report.Command = version, o.command
	return errors.Join(o.write(out, report), err)
}

// daemon returns the command of a daemon with that many lanes.
func (o benchOptions) daemon(lanes int) testbed.Daemon {
	return testbed.Command(slices.Concat(o.self, []string{"run", "--log-level", "error", "--lanes", strconv.Itoa(lanes)})...)
}

// write writes the report to each output that the flags name.
func (o benchOptions) write(out io.Writer, r *bench.Report) error {
	var errs []error
	if o.json != "-" {
		errs = append(errs, writeBenchTable(out, r))
	}
	if o.json != "" {
		errs = append(errs, o.writeJSON(out, r))
	}
	if o.plots != "" {
		for _, p := range bench.Plots(r) {
			errs = append(errs, os.WriteFile(filepath.Join(o.plots, p.Name+".svg"), p.SVG, 0o644))
		}
	}
	return errors.Join(errs...)
}

// writeBenchTable escapes the table for a terminal: errors in it may quote the output of a daemon.
func writeBenchTable(out io.Writer, r *bench.Report) error {
	var b strings.Builder
	if err := bench.WriteTable(&b, r); err != nil {
		return err
	}
	_, err := io.WriteString(out, printable(b.String()))
	return err
}

func (o benchOptions) writeJSON(out io.Writer, r *bench.Report) error {
	var text bytes.Buffer
	err := writeJSON(&text, struct {
		header
		*bench.Report
	}{headerOf("BenchReport"), r})
	switch {
	case err != nil:
	case o.json == "-":
		_, err = text.WriteTo(out)
	default:
		err = os.WriteFile(o.json, text.Bytes(), 0o644)
	}
	return err
}

// benchProgress shows the current measurement: on a terminal in one line that is overwritten, else in a line per stage.
type benchProgress struct {
	out   io.Writer
	tty   bool
	stage string
}

func (l *benchProgress) show(p bench.Progress) {
	switch {
	case l.tty:
		fmt.Fprintf(l.out, "\r[%2d/%d] %s: %s ...\x1b[K", p.Done+1, p.Total, p.Stage, p.What)
	case p.Stage != l.stage:
		fmt.Fprintf(l.out, "[%d/%d] %s ...\n", p.Done+1, p.Total, p.Stage)
	}
	l.stage = p.Stage
}

// clear removes the line from the terminal.
func (l *benchProgress) clear() {
	if l.tty {
		fmt.Fprint(l.out, "\r\x1b[K")
	}
}
