// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

func newUpCmd() *cobra.Command {
	var o metricsFlags
	var logs logOptions
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "up CONFIG_FILE | INTERFACE",
		Short: "Bring up an interface from a wg-quick file",
		Long: "up brings up an interface from a wg-quick file. It starts `ropewalk run`, then configures addresses, MTU, DNS and routes\n" +
			"as wg-quick(8) does. INTERFACE alone means " + quick.DefaultDir + "/INTERFACE.conf. If a step fails, or on Ctrl-C, up undoes\n" +
			"its changes. Before it executes PostUp commands, it reads addresses, routes, rules and MTU back from the kernel. It fails if\n" +
			"packets to AllowedIPs would leave in cleartext. The log of the daemon is " + quick.DefaultRunDir + "/INTERFACE.log.\n" +
			"WG_ENDPOINT_RESOLUTION_RETRIES=N|infinity sets the number of retries when a name server does not answer (default 15).\n" +
			"Besides wg-quick's keys, [Interface] may have Lanes=N, Metrics=HOST:PORT and\n  " + strings.Join(ownKeys(), "\n  ") + "\n" +
			"which correspond to flags of `ropewalk run`. up passes the --log and --metrics flags on to it; --metrics takes precedence\n" +
			"over the file.",
		Example:           "  ropewalk up wg0\n  ropewalk up ./wg0.conf\n  ropewalk up --metrics 127.0.0.1:9820 wg0",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeConfig,
		RunE: func(cmd *cobra.Command, args []string) error {
			logFlags, err := logs.args()
			if err != nil {
				return usageError{err}
			}
			if !dryRun {
				outliveClosedPipe()
			}
			return withInterface(cmd, args[0], func(r *quick.Runner, i quick.Interface) error {
				i.Metrics = o.addr // r.Up prints the command line with it
				o.addr = cmp.Or(o.addr, i.File.Interface.Metrics)
				more, err := o.args()
				if err != nil {
					return err
				}
				i.Arguments = slices.Concat(more, logFlags)
				if dryRun {
					return planUp(cmd, r, i)
				}
				return bringUp(cmd.Context(), r, i)
			})
		},
	}
	o.add(cmd.Flags())
	logs.flags(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the commands for the steps of up, and change nothing")
	return cmd
}

func planUp(cmd *cobra.Command, r *quick.Runner, i quick.Interface) error {
	if _, err := addKnownKey(r.Sockets, "/", &i); err != nil {
		return err
	}
	warnOfSettings(cmd.ErrOrStderr(), i)
	steps, err := r.PlanUp(cmd.Context(), i)
	if err != nil {
		return err
	}
	return printCommands(cmd, steps)
}

// warnOfSettings prints warnings for settings that are valid, but most likely a mistake.
func warnOfSettings(w io.Writer, i quick.Interface) {
	for _, warning := range slices.Concat(i.File.CheckSettings(), hostWarnings(os.DirFS("/"), i.File)) {
		fmt.Fprintln(w, printable(warning))
	}
}

// withInterface opens the interface's file and calls f with it and a Runner.
func withInterface(cmd *cobra.Command, arg string, f func(*quick.Runner, quick.Interface) error) error {
	i, err := openInterface(quick.DefaultDir, arg)
	return withOpened(cmd, i, err, f)
}

// withRunning is withInterface for an interface that is up: its file may be elsewhere than in quick.DefaultDir.
func withRunning(cmd *cobra.Command, arg string, f func(*quick.Runner, quick.Interface) error) error {
	i, err := openRunning(arg, openInterface)
	return withOpened(cmd, i, err, f)
}

// openRunning opens the file of an interface, or if there is none, that with which it was brought up. Without either, the error for a name that is no
// interface has the exit code exitUnreachable.
func openRunning(arg string, open func(dir, arg string) (quick.Interface, error)) (quick.Interface, error) {
	i, err := open(quick.DefaultDir, arg)
	if path := startedFrom(arg); path != "" && errors.Is(err, quick.ErrNoFile) {
		return open("", path)
	}
	if _, absent := hostnet.FindLink(arg); errors.Is(err, quick.ErrNoFile) && !strings.Contains(arg, "/") && errors.Is(absent, hostnet.ErrNoLink) {
		err = codedError{exitUnreachable, err}
	}
	return i, err
}

func withOpened(cmd *cobra.Command, i quick.Interface, err error, f func(*quick.Runner, quick.Interface) error) error {
	if err != nil {
		return withHint(keyHint(err))
	}
	for _, warning := range i.File.Warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), warning)
	}
	r, err := newRunner(cmd)
	if err != nil {
		return err
	}
	return withHint(f(r, i))
}

// openInterface is quick.Open with hints.
func openInterface(dir, arg string) (quick.Interface, error) {
	i, err := quick.Open(dir, arg)
	err = withFileHint(err, arg)
	if link, _ := hostnet.FindLink(arg); errors.Is(err, quick.ErrNoFile) && (link.Kind == tunKind || link.Kind == "wireguard") {
		return i, fmt.Errorf("%w, but the interface %s does: name the file with which it was brought up, or without one use `ip link delete %[2]s`", err, arg)
	}
	return i, err
}

// withFileHint adds a hint to quick.ErrNoFile: to wg-quick, wg0.conf is an interface of that name, and not a file in this directory.
func withFileHint(err error, arg string) error {
	if !errors.Is(err, quick.ErrNoFile) || strings.Contains(arg, "/") {
		return err
	}
	if info, statErr := os.Stat(arg); statErr == nil && info.Mode().IsRegular() {
		return fmt.Errorf("%w (for the file in this directory: ./%s)", err, arg)
	}
	return err
}

func newRunner(cmd *cobra.Command) (*quick.Runner, error) {
	resolve, err := newResolver(cmd)
	if err != nil {
		return nil, err
	}
	return &quick.Runner{
		Stdin: cmd.InOrStdin(), Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
		Tools: quick.FindTools(exec.LookPath), Root: os.DirFS("/"),
		Sockets: uapi.DefaultDir, RunDir: quick.DefaultRunDir,
		Resolve: resolve,
		Daemon: func(name string, flags []string) *exec.Cmd {
			daemon := exec.Command("/proc/self/exe", slices.Concat([]string{"run"}, flags, []string{name})...)
			daemon.Args[0] = "ropewalk"
			daemon.Env = append(os.Environ(), keepSocket+"=1")
			return daemon
		},
	}, nil
}

// outliveClosedPipe makes writes to a closed pipe fail. SIGPIPE would end this process amid its changes to the host. Hooks do not inherit this, as
// they would if the signal was ignored.
func outliveClosedPipe() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

func newResolver(cmd *cobra.Command) (conffile.Resolver, error) {
	retries, err := conffile.ParseRetries(os.Getenv("WG_ENDPOINT_RESOLUTION_RETRIES"))
	if err != nil {
		return nil, usageError{err}
	}
	return conffile.NewResolver(conffile.ResolverConfig{
		Retries: retries,
		OnRetry: func(endpoint string, err error, next time.Duration) {
			fmt.Fprintf(cmd.ErrOrStderr(), "%v: `%s'. Trying again in %.2f seconds...\n", err, endpoint, next.Seconds())
		},
	}), nil
}

// withHint adds advice to a permission error.
func withHint(err error) error {
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return fmt.Errorf("%w (needs root: try sudo)", err)
	}
	return err
}

// ownKeys returns the keys of a file that ropewalk adds and that can change while a tunnel runs, with their values.
func ownKeys() (keys []string) {
	for _, s := range config.Table() {
		keys = append(keys, s.Name+"="+s.Form)
	}
	return keys
}
