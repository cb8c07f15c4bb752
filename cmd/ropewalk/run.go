// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/daemon"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// runOptions are the flags of `ropewalk run`.
type runOptions struct {
	lanes    int
	nice     int
	workers  workersFlag
	mtu      int
	log      logOptions
	spread   config.SpreadMode
	ports    spread.Ports
	metrics  metricsFlags
	underlay underlayFlags
	takeover bool
}

func newRunCmd() *cobra.Command {
	o := runOptions{ports: spread.DefaultPorts, workers: autoWorkers}
	cmd := &cobra.Command{
		Use:   "run INTERFACE",
		Short: "Create a tunnel interface and serve it in the foreground",
		Long: "run creates the TUN interface, serves /var/run/wireguard/INTERFACE.sock for wg(8), and carries packets until it\n" +
			"is stopped by SIGTERM or SIGINT, or the interface is deleted. It is a drop-in for `wireguard-go -f INTERFACE`.\n" +
			"LOG_LEVEL=debug|verbose|info|warn|error|silent sets what is logged; `ropewalk log` changes that while it runs.",
		Example:           "  ropewalk run wg0\n  ropewalk run --lanes 4 wg0\n  ropewalk run --spread off wg0\n  ropewalk run --takeover wg0",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("log-level") {
				o.log.level = knownLevel(os.Getenv("LOG_LEVEL"))
			}
			return run(cmd.Context(), args[0], o)
		},
	}
	cmd.Flags().IntVar(&o.lanes, "lanes", 0, "lanes: TUN queues, workers and sockets (default: one per CPU)")
	cmd.Flags().IntVar(&o.nice, "nice", daemon.LaneNice,
		"added to the nice value of the lanes' threads: below zero, they go before\napplications, as the kernel's own network path does; 0 for not")
	cmd.Flags().Var(&o.workers, "workers",
		"workers that help lanes whose flow is more than one core can carry; 0 for none\n"+
			"(auto: one for each CPU beyond two, at most 4; they rest while no core is idle)")
	cmd.Flags().IntVar(&o.mtu, "mtu", 0, "MTU of the new interface (default 1420)")
	cmd.Flags().TextVar(&o.spread, "spread", config.SpreadAuto,
		"spread inner flows over source ports: `auto|off|on`\n(auto: towards peers that say they gather; on: towards all)")
	completeFlag(cmd, "spread", "auto", "off", "on")
	cmd.Flags().Var(portsFlag{&o.ports}, "spread-ports", "source ports to spread over, without the listen port")
	o.underlay.add(cmd)
	cmd.Flags().BoolVar(&o.takeover, "takeover", false,
		"take the interface over from the daemon that serves it: connections, routes\nand counters stay (docs/upgrade.md)")
	o.log.flags(cmd)
	o.metrics.add(cmd.Flags())
	cmd.Flags().BoolP("foreground", "f", true, "stay in the foreground (always; accepted for wireguard-go's sake)")
	return cmd
}

// portsFlag is a flag whose value is a range of ports.
type portsFlag struct{ ports *spread.Ports }

// Set implements pflag.Value.
func (f portsFlag) Set(s string) (err error) {
	*f.ports, err = config.ParsePorts(s)
	return err
}

// String implements pflag.Value. pflag also calls it on a zero portsFlag.
func (f portsFlag) String() string {
	if f.ports == nil {
		return ""
	}
	return f.ports.String()
}

// Type implements pflag.Value: what the help calls the value.
func (portsFlag) Type() string { return "first-last" }

// usageArgs makes a wrong number of arguments a usage error.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{fmt.Errorf("%w\nusage: %s", err, cmd.UseLine())}
		}
		return nil
	}
}

func run(ctx context.Context, name string, o runOptions) error {
	if err := inheritLog(); err != nil {
		return err
	}
	log, level, err := o.log.open(os.Stderr)
	if err != nil {
		return usageError{err}
	}
	tunnel := o.daemon(name, log, level)
	if err := tunnel.Check(); err != nil {
		return usageError{err}
	}
	if err := o.underlay.check(); err != nil {
		return err
	}
	return serve(ctx, log, tunnel, o)
}

// daemon is what the flags say of the tunnel.
func (o *runOptions) daemon(name string, log *slog.Logger, level *slog.LevelVar) daemon.Options {
	return daemon.Options{
		Name: name, MTU: o.mtu, Lanes: o.lanes, Workers: int(o.workers), Nice: o.nice,
		Spread: o.spread, SpreadPorts: o.ports, Underlay: o.underlay.mode, UnderlayDevice: o.underlay.device,
		ReceiveCPUs: o.underlay.cpus,
		Log:         log, Level: level,
		Upgrade: func(path, made string) (*daemon.Successor, error) {
			return startSuccessor(path, successorArgs(os.Args, name, made))
		},
		HandedOver: func(name string, heir int) { announceSuccessor(log, name, heir) },
	}
}

// serve makes the interface and its socket, or takes them over, and undoes that in reverse.
func serve(ctx context.Context, log *slog.Logger, tunnel daemon.Options, o runOptions) error {
	signal.Ignore(syscall.SIGPIPE) // a log reader that goes away must not take the tunnel with it
	d, exporter, err := o.begin(ctx, log, tunnel)
	if err != nil {
		return err
	}
	defer exporter.close()
	defer d.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	exporter.start(ctx, o.metrics.content(d))
	stopping := announce(ctx, log, d.Name())
	err = d.Serve(ctx)
	if errors.Is(err, daemon.ErrHandedOver) {
		return nil
	}
	stopping()
	return err
}

// begin has the tunnel run, and listens for those who read its metrics: first of all, since a tunnel that is to be seen and is not
// would go unnoticed. Where the address is that of a daemon that still runs, the tunnel goes before.
func (o *runOptions) begin(ctx context.Context, log *slog.Logger, tunnel daemon.Options) (*daemon.Daemon, *metricsServer, error) {
	if o.takeover {
		exporter, err := o.metrics.succeed(log)
		if err != nil {
			return nil, nil, err
		}
		d, err := daemon.TakeOver(ctx, tunnel)
		if err != nil {
			exporter.close()
			return nil, nil, takeoverError(err)
		}
		return d, exporter, nil
	}
	exporter, err := o.metrics.listen(log)
	if err != nil {
		return nil, nil, err
	}
	d, err := daemon.Open(tunnel)
	if err != nil {
		exporter.close()
		return nil, nil, err
	}
	return d, exporter, nil
}
