// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
)

// doctorOptions are the flags of `ropewalk doctor`.
type doctorOptions struct {
	pre, json, fix, undo, yes, strict, verbose bool

	peer    string
	devices []string
	port    uint16
	record  string
}

func newDoctorCmd() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor [INTERFACE...]",
		Short: "Check this host for causes of a slow tunnel, and show how to fix them",
		Long: "doctor checks this host for causes of a slow tunnel, and shows how to fix them. It probes the kernel's features, and reads\n" +
			"privileges, NICs, CPUs, sysctls and the clock. For each running tunnel it reports which fast paths are in use, and why the\n" +
			"others are not. Each problem comes with its effect and the command that fixes it. doctor changes nothing without --fix,\n" +
			"which shows its changes, asks, and records the old values: --undo restores them. Documentation: docs/doctor.md.\n" +
			"--peer tests the path to one peer instead: name, route, path MTU, firewall, handshake, and data both ways. The peer is a name, a\n" +
			"public key or its beginning, an endpoint, or an address inside the tunnel.\n" +
			"Exit code: 0 no problem, 3 a check failed, 4 no check failed but some warned, 1 error, 2 wrong command line, 5 no daemon\n" +
			"answers for an interface.",
		Example: "  ropewalk doctor\n  ropewalk doctor --pre --port 51820\n  ropewalk doctor --json wg0\n  ropewalk doctor --peer 10.0.0.2\n  ropewalk doctor --fix && ropewalk doctor --undo",
		Args: func(cmd *cobra.Command, args []string) error {
			return cmp.Or(o.check(args), o.checkPeer(args, cmd.Flags().Changed("peer")))
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return interfaces(), noFiles
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			d := doctorRun{o: o, settings: doctor.HostSettings{}, in: cmd.InOrStdin(), out: cmd.OutOrStdout()}
			d.gather = func(ctx context.Context) (*facts.Facts, error) { return o.gather(ctx, args) }
			return printing(d.run(cmd.Context()))
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.pre, "pre", false, "before a tunnel runs: omit the checks of running tunnels")
	f.BoolVar(&o.json, "json", false, "print JSON (apiVersion "+doctor.APIVersion+")")
	f.BoolVar(&o.fix, "fix", false, "show the settings that can be fixed at run time, ask, and change them")
	f.BoolVar(&o.undo, "undo", false, "restore the settings that --fix changed")
	f.BoolVarP(&o.yes, "yes", "y", false, "with --fix, do not ask")
	f.BoolVar(&o.strict, "strict", false, "exit with 3 also if there are only warnings")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "also explain the checks that passed")
	f.StringVar(&o.peer, "peer", "", "test the path to this peer; works while the tunnel carries traffic, and changes nothing")
	f.StringSliceVar(&o.devices, "device", nil, "NICs to check (default: the NICs of the default route and of the routes to peers)")
	f.Uint16Var(&o.port, "port", 51820, "listen port to check if no tunnel runs")
	f.StringVar(&o.record, "record", doctor.DefaultUndoRecord, "file with the old values, which --fix writes and --undo reads")
	_ = cmd.RegisterFlagCompletionFunc("device", completeDevice)
	_ = cmd.RegisterFlagCompletionFunc("peer", completeAnyPeer)
	return cmd
}

// check rejects flags that contradict each other.
func (o *doctorOptions) check(args []string) error {
	switch {
	case o.pre && len(args) > 0:
		return usageError{errors.New("--pre is for use before a tunnel runs: it takes no INTERFACE")}
	case o.undo && (o.fix || o.json || o.pre || len(args) > 0):
		return usageError{errors.New("--undo can be combined with --record only")}
	case o.fix && o.json:
		return usageError{errors.New("--fix and --json cannot be combined")}
	case o.yes && !o.fix:
		return usageError{errors.New("--yes needs --fix")}
	}
	return nil
}

func (o *doctorOptions) gather(ctx context.Context, tunnels []string) (*facts.Facts, error) {
	if o.peer != "" {
		return o.gatherPeer(ctx, socketDir(), tunnels)
	}
	f, err := facts.Gather(ctx, facts.Options{
		Pre: o.pre, Port: o.port, Tunnels: tunnels, Devices: o.devices, Dir: socketDir(), Now: time.Now, Saved: savedState,
	})
	switch {
	case errors.Is(err, hostnet.ErrNoLink):
		return nil, usageError{err}
	case errors.Is(err, facts.ErrNoTunnel):
		return nil, codedError{code: exitUnreachable, err: cmp.Or(renamedTunnel(socketDir(), tunnels), err)}
	}
	return f, err
}

// savedState compares a tunnel with the state that `ropewalk up` has saved of it.
func savedState(name string) (facts.Saved, error) {
	missing, err := (&quick.Runner{RunDir: quick.DefaultRunDir}).Missing(name)
	return facts.Saved{File: startedFrom(name), Missing: missing}, err
}

// renamedTunnel returns an error for the first bad name, nil for none. A name is bad if an
// interface had it before it was renamed, or has it since, or if its socket is a file.
func renamedTunnel(dir uapi.Dir, names []string) error {
	served, _ := dir.Interfaces() // an error means none
	for _, name := range names {
		if _, err := dir.Dial(name); errors.Is(err, uapi.ErrNotSocket) {
			return err
		}
		_, err := hostnet.FindLink(name)
		if former := formerNames(dir, name); len(former) > 0 && !slices.Contains(served, name) {
			return fmt.Errorf("examining %s: no daemon answers by this name; if the interface was renamed, its former name was %s: restart the tunnel with its new name",
				name, strings.Join(former, " or "))
		}
		if slices.Contains(served, name) && errors.Is(err, hostnet.ErrNoLink) {
			return fmt.Errorf("examining %s: its daemon runs, but this network namespace has no interface of that name: it was renamed, or is in another namespace", name)
		}
	}
	return nil
}

// doctorRun is one run of the command.
type doctorRun struct {
	o        doctorOptions
	gather   func(context.Context) (*facts.Facts, error)
	settings doctor.Settings
	in       io.Reader
	out      io.Writer
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

// fix shows the changes, asks, makes them, and examines the host again.
func (d *doctorRun) fix(ctx context.Context, changes []doctor.Change) error {
	if len(changes) == 0 {
		fmt.Fprintln(d.out, "\nNothing can be fixed at run time.")
	} else {
		d.plan(changes)
		if !d.o.yes && !d.confirmed(ctx) {
			return errors.New("not confirmed: nothing was changed")
		}
		made, err := doctor.Apply(d.settings, d.o.record, changes)
		for _, c := range made {
			fmt.Fprintf(d.out, "done: %s\n", printable(c.Command()))
		}
		if len(made) > 0 {
			fmt.Fprintln(d.out, "these changes last until the next reboot, or until `ropewalk doctor --undo`")
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
	fmt.Fprintln(d.out, "\nChanges to make:")
	for _, c := range changes {
		fmt.Fprintf(d.out, "  %s\n      %s\n", printable(fmt.Sprintf("%s: %q -> %q", c.Setting(), c.Before, c.After)), printable(c.Command()))
	}
}

func (d *doctorRun) confirmed(ctx context.Context) bool {
	fmt.Fprint(d.out, "Make these changes? [y/N] ")
	answer, _ := untilDone(ctx, func() (string, error) { return bufio.NewReader(d.in).ReadString('\n') })
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}

func (d *doctorRun) undo() error {
	outcomes, err := doctor.Undo(d.settings, d.o.record)
	for _, o := range outcomes {
		line := fmt.Sprintf("%s: %q -> %q", o.Change.Setting(), o.Change.After, o.Change.Before)
		if o.Note != "" {
			line = fmt.Sprintf("%s: not changed: %s", o.Change.Setting(), o.Note)
		}
		fmt.Fprintln(d.out, printable(line))
	}
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("there is nothing to undo: %w", err)
	}
	return err
}

// verdict returns the exit code of the report as an error without text, nil if there is no problem.
func (d *doctorRun) verdict(s doctor.Summary) error {
	switch {
	case s.Failed > 0, s.Warnings > 0 && d.o.strict:
		return codedError{code: exitFailed}
	case s.Warnings > 0:
		return codedError{code: exitWarnings}
	}
	return nil
}
