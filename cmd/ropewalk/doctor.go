// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/doctor"
	"github.com/ropewalk/ropewalk/pkg/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
)

// doctorOptions are the flags of `ropewalk doctor`.
type doctorOptions struct {
	pre, json, fix, undo, yes, strict, verbose bool

	devices []string
	port    uint16
	record  string
}

func newDoctorCmd() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor [INTERFACE...]",
		Short: "Say what keeps this host from carrying a tunnel fast, and what mends it",
		Long: "doctor looks at the kernel, by trying; at privileges, NICs, processors, sysctls and the clock; and at the tunnels that\n" +
			"run: which fast paths each uses, and why not the others. Of what is not well it says why it matters and the command\n" +
			"that mends it. It changes nothing unless told to with --fix, which first shows what it would do, asks, and\n" +
			"remembers what was before: --undo restores that. Docs: docs/doctor.md.\n" +
			"Exit code: 0 all is well, 3 a check failed, 4 there are warnings, 1 an error, 2 wrong usage,\n" +
			"5 nobody serves a named interface.",
		Example: "  ropewalk doctor\n  ropewalk doctor --pre --port 51820\n  ropewalk doctor --json wg0\n  ropewalk doctor --fix && ropewalk doctor --undo",
		Args:    func(_ *cobra.Command, args []string) error { return o.check(args) },
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return interfaces(), noFiles
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			d := doctorRun{o: o, hands: doctor.Host{}, in: cmd.InOrStdin(), out: cmd.OutOrStdout()}
			d.gather = func(ctx context.Context) (*facts.Facts, error) { return o.gather(ctx, args) }
			return printing(d.run(cmd.Context()))
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.pre, "pre", false, "before a tunnel runs: leave out what is about running ones")
	f.BoolVar(&o.json, "json", false, "print JSON (apiVersion "+doctor.APIVersion+")")
	f.BoolVar(&o.fix, "fix", false, "show what can be changed at run time, ask, and change it")
	f.BoolVar(&o.undo, "undo", false, "take back what --fix has changed")
	f.BoolVarP(&o.yes, "yes", "y", false, "with --fix, do not ask")
	f.BoolVar(&o.strict, "strict", false, "exit with 3 for warnings, too")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "say why it matters of what is well, too")
	f.StringSliceVar(&o.devices, "device", nil, "NICs to look at (default: those of the default route and of the routes to peers)")
	f.Uint16Var(&o.port, "port", 51820, "port that a tunnel is to listen on, where none runs")
	f.StringVar(&o.record, "record", doctor.DefaultRecord, "where --fix writes, and --undo reads, what was before")
	_ = cmd.RegisterFlagCompletionFunc("device", completeDevice)
	return cmd
}

// check refuses flags that contradict each other.
func (o *doctorOptions) check(args []string) error {
	switch {
	case o.pre && len(args) > 0:
		return usageError{errors.New("--pre is for before a tunnel runs: name no INTERFACE with it")}
	case o.undo && (o.fix || o.json || o.pre || len(args) > 0):
		return usageError{errors.New("--undo goes with --record alone")}
	case o.fix && o.json:
		return usageError{errors.New("--fix and --json exclude each other")}
	case o.yes && !o.fix:
		return usageError{errors.New("--yes is for --fix")}
	}
	return nil
}

func (o *doctorOptions) gather(ctx context.Context, tunnels []string) (*facts.Facts, error) {
	f, err := facts.Gather(ctx, facts.Options{
		Pre: o.pre, Port: o.port, Tunnels: tunnels, Devices: o.devices, Dir: socketDir(), Now: time.Now,
	})
	switch {
	case errors.Is(err, hostnet.ErrNoLink):
		return nil, usageError{err}
	case errors.Is(err, facts.ErrNotServed):
		return nil, codedError{code: exitUnreachable, err: err}
	}
	return f, err
}

// doctorRun is one run of the command.
type doctorRun struct {
	o      doctorOptions
	gather func(context.Context) (*facts.Facts, error)
	hands  doctor.Hands
	in     io.Reader
	out    io.Writer
}

func (d *doctorRun) run(ctx context.Context) error {
	if d.o.undo {
		return d.undo()
	}
	f, err := d.gather(ctx)
	if err != nil {
		return err
	}
	report := doctor.Examine(f)
	if d.o.json {
		err = report.WriteJSON(d.out)
	} else {
		color := isTerminal(d.out) && os.Getenv("NO_COLOR") == ""
		err = report.WriteText(d.out, doctor.Style{Color: color, Verbose: d.o.verbose})
	}
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	if !d.o.fix {
		return d.verdict(report.Summary)
	}
	return d.fix(ctx, report.Changes())
}

// fix shows the plan, asks, carries it out, and judges what came of it.
func (d *doctorRun) fix(ctx context.Context, changes []doctor.Change) error {
	if len(changes) == 0 {
		fmt.Fprintln(d.out, "\nNothing here can be mended at run time.")
	} else {
		d.plan(changes)
		if !d.o.yes && !d.agreed() {
			return errors.New("nothing was changed")
		}
		made, err := doctor.Treat(d.hands, d.o.record, changes)
		for _, c := range made {
			fmt.Fprintf(d.out, "done: %s\n", printable(c.Command()))
		}
		if len(made) > 0 {
			fmt.Fprintln(d.out, "until the next start of the machine, or `ropewalk doctor --undo`")
		}
		if err != nil {
			return err
		}
	}
	f, err := d.gather(ctx)
	if err != nil {
		return err
	}
	report := doctor.Examine(f)
	return d.verdict(report.Summary)
}

func (d *doctorRun) plan(changes []doctor.Change) {
	fmt.Fprintln(d.out, "\nThis would be changed:")
	for _, c := range changes {
		fmt.Fprintf(d.out, "  %s\n      %s\n", printable(fmt.Sprintf("%s: %q -> %q", c.Setting(), c.Before, c.After)), printable(c.Command()))
	}
}

func (d *doctorRun) agreed() bool {
	fmt.Fprint(d.out, "Change it? [y/N] ")
	answer, _ := bufio.NewReader(d.in).ReadString('\n')
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}

func (d *doctorRun) undo() error {
	outcomes, err := doctor.Undo(d.hands, d.o.record)
	for _, o := range outcomes {
		line := fmt.Sprintf("%s: %q -> %q", o.Change.Setting(), o.Change.After, o.Change.Before)
		if o.Note != "" {
			line = fmt.Sprintf("%s: left alone, %s", o.Change.Setting(), o.Note)
		}
		fmt.Fprintln(d.out, printable(line))
	}
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("there is nothing to take back: %w", err)
	}
	return err
}

// verdict is nil if all is well. The report has said the rest.
func (d *doctorRun) verdict(s doctor.Summary) error {
	switch {
	case s.Failed > 0, s.Warnings > 0 && d.o.strict:
		return codedError{code: exitFailed}
	case s.Warnings > 0:
		return codedError{code: exitWarnings}
	}
	return nil
}
