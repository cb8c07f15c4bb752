// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/reflector"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// Daemon is a running tunnel. Its methods may be called by any goroutine. It implements uapi.Handler.
type Daemon struct {
	o            Options
	log          *slog.Logger
	pool         *workpool.Pool
	endpoints    *endpoints
	reflector    *reflector.Reflector                // nil without Options.Reflect
	stopWatchers context.CancelFunc                  // of routes, links, clock and endpoints
	absentLinks  atomic.Pointer[hostnet.AbsentLinks] // of endpoints; nil before start, unless a predecessor knows some
	done         chan struct{}                       // closed when the tunnel has ended
	doneOnce     sync.Once

	handoverMu, upgradeMu sync.Mutex     // one handover and one upgrade at a time
	configuring           sync.RWMutex   // held for reading by each change of the configuration, and for writing during a handover
	announced             chan struct{}  // closed when a successor has the tunnel, and Options.OnHandover has returned
	preparing             chan int       // the number of peers in the last snapshot that was sent, for the upgrade that waits for it
	upgradeReplies        sync.WaitGroup // upgrade clients without their answer; the Daemon does not end before they have it

	mu         sync.RWMutex // guards the fields below; locked for writing while a handover has stopped the tunnel
	tunnel     *tunnel
	handedOver bool // a successor has the tunnel
	listener   *uapi.Listener
}

// Open creates the interface, which is down, and its control socket. The tunnel carries packets
// once the interface is up. The caller serves the socket with Serve, and closes the Daemon. Open
// raises GOMAXPROCS to the need of the lanes. Errors are from tun.Open and uapi.Listen.
func Open(o Options) (*Daemon, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	o = o.complete()
	t, err := o.openTUN()
	if err != nil {
		return nil, err
	}
	raiseGOMAXPROCS(o.Lanes, o.Workers)
	d := newDaemon(o, t.Name())
	steer(d.log, t)
	d.endpoints.load(t.Name())
	d.tunnel = d.newTunnel(t, nil)
	err = d.configure()
	if err == nil {
		err = d.listenReflector()
	}
	if err == nil {
		d.listener, err = o.listen(t.Name())
	}
	if err != nil {
		d.pool.Close()
		return nil, errors.Join(err, d.reflector.Close(), t.Close())
	}
	d.start()
	return d, nil
}

// openTUN creates the interface, or adopts TUNFD.
func (o *Options) openTUN() (tun.Device, error) {
	if o.TUNFD != 0 {
		return tun.Adopt(o.TUNFD, tun.Config{BusyPoll: true, Log: o.Log})
	}
	return tun.Open(tun.Config{Name: o.Name, Queues: o.Lanes, MTU: o.MTU, BusyPoll: true, Log: o.Log, Persist: o.Persist})
}

// listen creates the control socket of the interface, or adopts ControlFD.
func (o *Options) listen(name string) (*uapi.Listener, error) {
	if o.ControlFD == 0 {
		return uapi.Listen(name)
	}
	l, err := uapi.DefaultDir.ListenFD(name, o.ControlFD)
	if err != nil {
		return nil, err
	}
	if err := l.Own(); err != nil { // ropewalk down finds the daemon by its socket
		return nil, errors.Join(fmt.Errorf("listening on the given control socket: %w", err), l.Close())
	}
	return l, nil
}

// listenReflector binds the reflector to the interface, unless that was moved to another network namespace.
func (d *Daemon) listenReflector() (err error) {
	switch index := indexOf(d.tunnel.tun); {
	case d.o.Reflect == 0:
	case index == 0:
		d.log.Warn("the interface is in another network namespace, this daemon reflects no datagrams")
	default:
		d.reflector, err = reflector.Listen(index, d.o.Reflect)
	}
	return err
}

// admitReflection reports whether the reflector answers a request. It does not answer this host's own processes.
func (d *Daemon) admitReflection(from netip.Addr) bool {
	return d.current().AdmitReflection(from, hostnet.IsLocal)
}

// newDaemon returns a Daemon without a tunnel, with its workers started. All of its log messages name the interface.
func newDaemon(o Options, name string) *Daemon {
	log := o.Log.With("interface", name)
	return &Daemon{
		o: o, log: log, pool: startWorkers(log, o.Workers), endpoints: newEndpoints(o), done: make(chan struct{}),
		announced: make(chan struct{}),
		preparing: make(chan int, 1),
	}
}

// start starts the tunnel, and the watchers of routes, links and clock.
func (d *Daemon) start() {
	d.tunnel.Start()
	go d.reflector.Serve(d.admitReflection)
	features := d.tunnel.tun.Features()
	d.log.Info("interface ready", "lanes", d.o.Lanes, "workers", d.pool.Workers(),
		"tso", features.TSO, "uso", features.USO, "tun_steering", features.Steer)
	ctx, cancel := context.WithCancel(context.Background())
	d.stopWatchers = cancel
	if err := hostnet.WatchRoutes(ctx, func() { d.current().RoutesChanged() }); err != nil {
		d.log.Warn("watching routes failed, changed routes and source addresses take effect only with later handshakes, perhaps minutes later, until this daemon restarts", "error", err)
	}
	if err := hostnet.WatchIndexes(ctx, &d.absentLinks, d.usesScope, d.moveScope); err != nil {
		d.log.Warn("watching links failed, endpoints on a link that is deleted and created again stay unreachable until they are set again", "error", err)
	}
	if err := watchClock(ctx, d.clockJumped); err != nil {
		d.log.Warn("watching the clock for suspends failed, session keys may outlive a suspend of this machine until this daemon restarts", "error", err)
	}
	if err := watchGeneration(ctx, d.log, func() { d.current().MachineCopied() }); err != nil {
		d.log.Warn("watching the VM generation ID failed, a clone of this machine would use the same session keys: restart the interface after cloning", "error", err)
	}
	go d.endpoints.keep(ctx, d.Name(), d.current)
	go d.finishWith(d.tunnel.Device)
}

// usesScope reports whether endpoints are on the link with this index.
func (d *Daemon) usesScope(index int) bool { return d.current().UsesScope(uint32(index)) }

// moveScope moves the endpoints on a link that was created again.
func (d *Daemon) moveScope(link string, from, to int) {
	d.log.Info("link of link-local endpoints was created again, moving the endpoints to its new index", "link", link, "index", to)
	d.current().MoveScope(uint32(from), uint32(to))
}

// clockJumped follows a suspend of the machine, or a change of its clock.
func (d *Daemon) clockJumped(suspended bool) {
	dev := d.current()
	if suspended && !suspendsOften(autosleepFile) {
		dev.MachineResumed()
	}
	dev.ClockJumped()
}

// finishWith ends the Daemon when its device ends by itself.
func (d *Daemon) finishWith(dev *device.Device) {
	<-dev.Done()
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.tunnel.Device == dev && !d.handedOver { // not replaced by a handover
		d.finish()
	}
}

// finish closes Done.
func (d *Daemon) finish() { d.doneOnce.Do(func() { close(d.done) }) }

// current returns the running device.
func (d *Daemon) current() *device.Device {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.tunnel.Device
}

// Name returns the name with which the interface and its control socket were created. Renaming the interface does not change it.
func (d *Daemon) Name() string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.tunnel.tun.Name()
}

// Status implements uapi.Handler. It holds secrets.
func (d *Daemon) Status() config.Status { return d.current().Status() }

// Configure implements uapi.Handler. A change waits for the end of a handover under way, and fails after it.
func (d *Daemon) Configure(c config.Device) error {
	d.configuring.RLock()
	defer d.configuring.RUnlock()
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.handedOver {
		return fmt.Errorf("configuring %s: %w, repeat the change: %w", d.tunnel.tun.Name(), ErrHandedOver, syscall.EAGAIN)
	}
	return d.tunnel.Configure(c)
}

// Stats implements uapi.Handler with a device.Stats.
func (d *Daemon) Stats() any {
	s, _ := d.current().Stats().(device.Stats)
	s.Version, s.Features, s.Reflector = d.o.Version, uapi.Features(), d.reflector.Report()
	if absent := d.absentLinks.Load(); absent != nil {
		s.AbsentLinks = *absent
	}
	return s
}

// StuckLanes returns the lanes that make no progress, such as rx0.
func (d *Daemon) StuckLanes() []string { return d.current().StuckLanes() }

// flows returns a device.FlowReport.
func (d *Daemon) flows() any { return d.current().Flows() }

// probe sends a message to a peer (device.ProbePeer).
func (d *Daemon) probe(key noise.PublicKey) (config.PeerProbe, bool) {
	return d.current().ProbePeer(key)
}

// Done is closed when the tunnel has ended: by Close, by deletion of the interface, or by a handover.
func (d *Daemon) Done() <-chan struct{} { return d.done }

// Serve answers the clients of the control socket until ctx or the tunnel ends, or until the socket's file is removed (see
// Options.KeepSocket). It returns nil then, or ErrHandedOver after a handover. It returns another error when the socket fails. A handover that has stopped the tunnel is not interrupted by the end of ctx.
func (d *Daemon) Serve(ctx context.Context) error {
	end := ctx.Done()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	go func() {
		select {
		case <-d.done:
		case <-end:
			d.mu.RLock() // during a handover its connection stays open: the successor also gets the counters
			defer d.mu.RUnlock()
		case <-ctx.Done():
		}
		cancel()
	}()
	s := &uapi.Server{Handler: d, Log: d.log, Level: d.o.Level, Handover: d.sendHandover, Flows: d.flows, Probe: d.probe}
	if d.o.StartSuccessor != nil {
		s.Upgrade = d.upgrade
	}
	err := d.serveSockets(ctx, s)
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.handedOver {
		<-d.announced
		return ErrHandedOver
	}
	return err
}

// Close ends the tunnel and waits until all goroutines have ended. It deletes the interface, unless that is persistent or a successor
// has it. It may be called repeatedly.
func (d *Daemon) Close() {
	d.stopWatchers()
	_ = d.reflector.Close() // fails if it is closed
	own, peers, _ := d.current().SessionEndpoints()
	d.current().Close()
	if !d.wasHandedOver() {
		d.endpoints.end(d.Name(), endpointsFile{own, peers})
	}
	if err := d.closeInherited(); err != nil {
		d.log.Debug("closing sockets inherited from the old daemon failed while shutting down, they close with this process", "error", err)
	}
	_ = d.listener.Close() // Serve has closed it already, if it was called
	d.pool.Close()         // after the device, whose lanes use it
	d.finish()
}

// wasHandedOver reports whether a successor has the tunnel.
func (d *Daemon) wasHandedOver() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.handedOver
}

// closeInherited closes the predecessor's sockets that no port has used.
func (d *Daemon) closeInherited() error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.tunnel.ports.closeInherited()
}
