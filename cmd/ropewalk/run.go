// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/datapath"
	"github.com/ropewalk/ropewalk/pkg/device"
	"github.com/ropewalk/ropewalk/pkg/engine"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/spread"
	"github.com/ropewalk/ropewalk/pkg/thread"
	"github.com/ropewalk/ropewalk/pkg/tun"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// runOptions are the flags of `ropewalk run`.
type runOptions struct {
	lanes    int
	nice     int
	workers  workersFlag
	mtu      int
	log      logOptions
	level    *slog.LevelVar // of the logger that log describes
	spread   config.SpreadMode
	ports    spread.Ports
	metrics  metricsFlags
	underlay underlayFlags
}

func newRunCmd() *cobra.Command {
	o := runOptions{ports: spread.DefaultPorts, workers: autoWorkers}
	cmd := &cobra.Command{
		Use:   "run INTERFACE",
		Short: "Create a tunnel interface and serve it in the foreground",
		Long: "run creates the TUN interface, serves /var/run/wireguard/INTERFACE.sock for wg(8), and carries packets until it\n" +
			"is stopped by SIGTERM or SIGINT, or the interface is deleted. It is a drop-in for `wireguard-go -f INTERFACE`.\n" +
			"LOG_LEVEL=debug|verbose|info|warn|error|silent sets what is logged; `ropewalk log` changes that while it runs.",
		Example:           "  ropewalk run wg0\n  ropewalk run --lanes 4 wg0\n  ropewalk run --spread off wg0",
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
	cmd.Flags().IntVar(&o.nice, "nice", laneNice,
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
	o.level = level
	cpus := runtime.GOMAXPROCS(0) // what the process may use: by its affinity, and by its cgroup's quota
	o.workers = workersFlag(o.workers.number(cpus))
	if o.lanes == 0 {
		o.lanes = min(cpus, config.MaxLanes)
	}
	if o.lanes < 1 || o.lanes > config.MaxLanes {
		return usageError{fmt.Errorf("--lanes %d: want 1 to %d", o.lanes, config.MaxLanes)}
	}
	if o.nice < -20 || o.nice > 19 {
		return usageError{fmt.Errorf("--nice %d: want -20 to 19", o.nice)}
	}
	// Each lane has two threads that linger in system calls with a processor each, and each worker one. The others need some too.
	runtime.GOMAXPROCS(max(cpus, 2*o.lanes+int(o.workers)+2))
	return serve(ctx, log, name, o)
}

// serve makes the interface and its socket, and undoes both in reverse.
func serve(ctx context.Context, log *slog.Logger, name string, o runOptions) (err error) {
	signal.Ignore(syscall.SIGPIPE) // a log reader that goes away must not take the tunnel with it
	exporter, err := o.metrics.listen(log)
	if err != nil {
		return err
	}
	defer exporter.close()
	t, err := tun.Open(tun.Config{Name: name, Queues: o.lanes, MTU: o.mtu, Linger: true})
	if err != nil {
		return err
	}
	steer(log, t)
	plans := &planner{log: log, logged: map[string]bool{}}
	helpers := startWorkers(log, int(o.workers))
	defer helpers.Close() // after the device, whose lanes use them
	d := device.New(device.Config{
		TUN: t, OpenPort: openPort(log, o.underlay.device), Plan: plans.plan, Log: log, Clock: engine.BootClock(), Begin: ownThread(log, o.nice),
		Crew: helpers,
	})
	if err := configureSpread(log, d, o); err != nil {
		return errors.Join(err, t.Close())
	}
	l, err := uapi.Listen(t.Name())
	if err != nil {
		return errors.Join(err, t.Close())
	}
	d.Start()
	defer d.Close()
	features := t.Features()
	log.Info("interface ready", "interface", t.Name(), "lanes", o.lanes, "workers", helpers.Workers(),
		"tso", features.TSO, "uso", features.USO, "steer", features.Steer)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := hostnet.WatchRoutes(ctx, d.RoutesChanged); err != nil {
		log.Warn("peers keep the source address they last reached when routes change", "error", err)
	}
	if err := watchClock(ctx, d.ClockJumped); err != nil {
		log.Warn("keys may be erased late when the machine was suspended", "error", err)
	}
	exporter.start(ctx, d)
	go func() {
		<-d.Done()
		cancel()
	}()
	defer announce(ctx, log, t.Name())()
	return (&uapi.Server{Handler: d, Log: log, Level: o.level}).Serve(ctx, l)
}

// configureSpread tells the device how to spread, and its operator what may make that worse.
func configureSpread(log *slog.Logger, d *device.Device, o runOptions) error {
	if err := d.Configure(config.Device{Spread: &o.spread, SpreadPorts: &o.ports, Underlay: &o.underlay.mode}); err != nil {
		return fmt.Errorf("setting how to spread: %w", err)
	}
	if o.spread == config.SpreadOff {
		return nil
	}
	warnOfLocalPorts(log, o.ports)
	return nil
}

// warnOfLocalPorts tells of spread ports that the kernel gives to other sockets too.
func warnOfLocalPorts(log *slog.Logger, ports spread.Ports) {
	local, err := hostnet.ReadLocalPorts()
	if err != nil {
		log.Debug("whether other sockets are given the spread ports is not known", "error", err)
		return
	}
	var each []uint16
	for p := int(ports.First); p <= int(ports.Last); p++ {
		each = append(each, uint16(p))
	}
	if given := local.Among(each); given.Len() > 0 {
		log.Warn("the kernel gives some of the spread ports to other sockets too: those it has given away are left out",
			"spread_ports", ports, "local_port_range", local.Range, "to_reserve", local.Reserving(given))
	}
}

// steer makes the flow hash choose the TUN queue. Where it cannot, flows follow their answers: all transmit work for one
// peer may then fall to one lane, and nothing else is lost.
func steer(log *slog.Logger, t tun.Device) {
	if len(t.Queues()) == 1 {
		return
	}
	if err := attachSteer(t); err != nil {
		log.Warn("lanes are not steered", "interface", t.Name(), "error", err)
	}
}

func attachSteer(t tun.Device) error {
	s, ok := t.(tun.Steerer)
	if !ok {
		return errors.ErrUnsupported
	}
	program, err := datapath.LoadSteer()
	if err != nil {
		return err
	}
	return errors.Join(s.SetSteering(program.FD()), program.Close())
}

// receiveBuffer bounds the queue in front of a lane, in bytes. It is what a bulk transfer makes others wait for: 7 MiB,
// which other tunnels take, holds 15 ms at 4 Gbit/s. A peer that spreads fills all lanes, so that each gets a part; with
// less than half a MiB, trains are lost (docs/performance.md).
func receiveBuffer(lanes int) int { return max(1<<20/lanes, 512<<10) }

// laneNice is added to the nice value of the lanes' threads unless the user says otherwise (docs/performance.md).
const laneNice = -10

// ownThread gives each loop of a lane a thread that perf and top can tell from the others, and that does not wait long.
func ownThread(log *slog.Logger, nice int) func(loop string) {
	var once sync.Once
	return func(loop string) {
		err := thread.Own("rw-"+loop, thread.Options{Slice: thread.MinSlice, Nice: nice})
		if err != nil {
			once.Do(func() { log.Warn("lanes are not scheduled as they should be", "nice", nice, "error", err) })
		}
	}
}
