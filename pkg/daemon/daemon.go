// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/crew"
	"github.com/ropewalk/ropewalk/pkg/device"
	"github.com/ropewalk/ropewalk/pkg/engine"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/spread"
	"github.com/ropewalk/ropewalk/pkg/tun"
	"github.com/ropewalk/ropewalk/pkg/uapi"
	"github.com/ropewalk/ropewalk/pkg/underlay/udp"
)

// Options say what a Daemon is like.
type Options struct {
	Name    string // of the interface; one %d in it is replaced by the lowest free number
	MTU     int    // of the new interface in bytes; 0 is tun.DefaultMTU
	Lanes   int    // 0 is one for each CPU that the process may use
	Workers int    // of the crew; AutoWorkers leaves the number to the machine
	Nice    int    // added to the nice value of the lanes' threads, -20 to 19

	Spread         config.SpreadMode
	SpreadPorts    spread.Ports // zero stands for spread.DefaultPorts
	Underlay       config.UnderlayMode
	UnderlayDevice string // whose queues AF_XDP uses; empty for the one that most peers are reached by
	ReceiveCPUs    config.ReceiveCPUs

	// Persist leaves the interface behind when the daemon closes or dies, with its addresses and routes, and adopts one that was
	// left behind. See tun.Config.
	Persist bool

	Log   *slog.Logger
	Level *slog.LevelVar // of Log, for the control socket; nil if it is fixed
	// Upgrade starts the program at path as the daemon's successor, which is to call TakeOver for the interface called name, and
	// returns how to end it; nil: there is no upgrade on request.
	Upgrade func(path, name string) (*Successor, error)
	// HandedOver, if there is one, is told once which process has the tunnel called name by then (0: not known), before whoever asked for
	// that hears of it and before Serve returns.
	HandedOver func(name string, pid int)
}

// LaneNice is what lanes are given as Options.Nice (docs/performance.md).
const LaneNice = -10

// usable is how many CPUs the process may use: by its affinity, and by its cgroup's quota. It is asked for before the first makeRoom,
// which raises that: a process may open one tunnel after another.
var usable = sync.OnceValue(func() int { return runtime.GOMAXPROCS(0) })

// complete returns o with its defaults filled in.
func (o Options) complete() Options {
	cpus := usable()
	if o.Lanes == 0 {
		o.Lanes = min(cpus, config.MaxLanes)
	}
	o.Workers = workers(o.Workers, cpus)
	if o.SpreadPorts.Len() == 0 {
		o.SpreadPorts = spread.DefaultPorts
	}
	return o
}

// Check finds what cannot be.
func (o *Options) Check() error {
	switch {
	case o.Lanes < 0 || o.Lanes > config.MaxLanes:
		return fmt.Errorf("%d lanes: want 1 to %d, or 0 for one for each CPU", o.Lanes, config.MaxLanes)
	case o.Nice < -20 || o.Nice > 19:
		return fmt.Errorf("a nice value of %d: want -20 to 19", o.Nice)
	}
	return nil
}

// Daemon is a tunnel that runs. Its methods may be called by any goroutine. It implements uapi.Handler.
type Daemon struct {
	o     Options
	log   *slog.Logger
	crew  *crew.Crew
	stop  context.CancelFunc // of what watches the host
	ended chan struct{}      // closed when the tunnel is
	once  sync.Once

	handing, upgrading sync.Mutex     // one at a time
	given              chan struct{}  // closed when another process has the tunnel, and HandedOver knows
	upgrades           sync.WaitGroup // whose clients are to be told

	mu       sync.RWMutex // held for writing while everything changes hands
	tunnel   *tunnel
	left     bool // another process has it
	listener *uapi.Listener
}

// tunnel is what changes hands.
type tunnel struct {
	*device.Device
	tun   tun.Device
	ports *ports
}

// Open creates the interface, which is down, and its control socket, and begins to carry packets once it is up. The caller
// serves the socket with Serve, and closes the Daemon. GOMAXPROCS is raised to what lanes need. Errors are those of tun.Open and of
// uapi.Listen.
func Open(o Options) (*Daemon, error) {
	o = o.complete()
	if err := o.Check(); err != nil {
		return nil, err
	}
	t, err := tun.Open(tun.Config{Name: o.Name, Queues: o.Lanes, MTU: o.MTU, Linger: true, Log: o.Log, Persist: o.Persist})
	if err != nil {
		return nil, err
	}
	makeRoom(o.Lanes, o.Workers)
	d := assemble(o)
	steer(o.Log, t)
	d.tunnel = d.build(t, nil)
	err = d.configure()
	if err == nil {
		d.listener, err = uapi.Listen(t.Name())
	}
	if err != nil {
		d.crew.Close()
		return nil, errors.Join(err, t.Close())
	}
	d.start()
	return d, nil
}

// assemble prepares what needs no tunnel yet.
func assemble(o Options) *Daemon {
	return &Daemon{o: o, log: o.Log, crew: startCrew(o.Log, o.Workers), ended: make(chan struct{}), given: make(chan struct{})}
}

// makeRoom raises GOMAXPROCS: each lane has two threads that linger in system calls with a processor each, and each worker one. The
// others need some too.
func makeRoom(lanes, workers int) {
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 2*lanes+workers+2))
}

// build makes a device over t, which it owns then. The sockets, nil for none, are used by its first port.
func (d *Daemon) build(t tun.Device, sockets *udp.Sockets) *tunnel {
	p := &ports{log: d.log, device: d.o.UnderlayDevice, inherited: sockets}
	plans := &planner{log: d.log, logged: map[string]bool{}}
	return &tunnel{tun: t, ports: p, Device: device.New(device.Config{
		TUN: t, OpenPort: p.open, Plan: plans.plan, Log: d.log, Clock: engine.BootClock(), Begin: ownThread(d.log, d.o.Nice),
		Crew: d.crew,
	})}
}

// configure tells a new device how to spread, and its operator what may make that worse.
func (d *Daemon) configure() error {
	o := &d.o
	c := config.Device{Spread: &o.Spread, SpreadPorts: &o.SpreadPorts, Underlay: &o.Underlay, ReceiveCPUs: &o.ReceiveCPUs}
	if err := d.tunnel.Configure(c); err != nil {
		return fmt.Errorf("setting how to spread: %w", err)
	}
	if o.Spread != config.SpreadOff {
		warnOfLocalPorts(d.log, o.SpreadPorts)
	}
	return nil
}

// start has the tunnel run, and the host watched for it.
func (d *Daemon) start() {
	d.tunnel.Start()
	features := d.tunnel.tun.Features()
	d.log.Info("interface ready", "interface", d.Name(), "lanes", d.o.Lanes, "workers", d.crew.Workers(),
		"tso", features.TSO, "uso", features.USO, "steer", features.Steer)
	ctx, cancel := context.WithCancel(context.Background())
	d.stop = cancel
	if err := hostnet.WatchRoutes(ctx, func() { d.current().RoutesChanged() }); err != nil {
		d.log.Warn("peers keep the source address they last reached when routes change", "error", err)
	}
	if err := watchClock(ctx, func() { d.current().ClockJumped() }); err != nil {
		d.log.Warn("keys may be erased late when the machine was suspended", "error", err)
	}
	go d.follow(d.tunnel.Device)
}

// follow ends the Daemon when its device ends by itself.
func (d *Daemon) follow(now *device.Device) {
	<-now.Done()
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.tunnel.Device == now && !d.left { // else another one has taken its place
		d.end()
	}
}

func (d *Daemon) end() { d.once.Do(func() { close(d.ended) }) }

// current is the device that runs now.
func (d *Daemon) current() *device.Device {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.tunnel.Device
}

// Name is the name that the interface and its control socket were made with, which a later renaming does not change.
func (d *Daemon) Name() string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.tunnel.tun.Name()
}

// Status implements uapi.Handler. It holds secrets.
func (d *Daemon) Status() config.Status { return d.current().Status() }

// Configure implements uapi.Handler. A change waits until everything has changed hands, and is refused then.
func (d *Daemon) Configure(c config.Device) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.tunnel.Configure(c)
}

// Stats implements uapi.Handler with a device.Stats.
func (d *Daemon) Stats() any { return d.current().Stats() }

// Done is closed when the tunnel has ended: by Close, because the interface was deleted, or because another process has it.
func (d *Daemon) Done() <-chan struct{} { return d.ended }

// Serve answers the clients of the control socket until ctx ends or the tunnel does, and returns nil, or an error when the socket
// fails before. After a hand-over it returns ErrHandedOver.
func (d *Daemon) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-d.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	s := &uapi.Server{Handler: d, Log: d.log, Level: d.o.Level, TakeOver: d.handOver}
	if d.o.Upgrade != nil {
		s.Upgrade = d.upgrade
	}
	err := s.Serve(ctx, d.listener)
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.left {
		<-d.given
		return ErrHandedOver
	}
	return err
}

// Close ends the tunnel and waits until all goroutines have ended. The interface goes with it unless it is persistent or another
// process's. It may be called repeatedly.
func (d *Daemon) Close() {
	d.stop()
	d.current().Close()
	if err := d.discard(); err != nil {
		d.log.Debug("closing sockets that were not used", "error", err)
	}
	_ = d.listener.Close() // Serve has closed it already, if it was called
	d.crew.Close()         // after the device, whose lanes use it
	d.end()
}

// discard closes the sockets of before that no port has come to use.
func (d *Daemon) discard() error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.tunnel.ports.discard()
}
