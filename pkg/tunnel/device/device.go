// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/toobig"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/admission"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pathmtu"
)

// MaxPeers is the largest number of peers of a device, as in the in-kernel WireGuard
// (MAX_PEERS_PER_DEVICE).
const MaxPeers = 1 << 20

// ErrTooManyPeers is returned by Configure when a change would exceed MaxPeers.
var ErrTooManyPeers = fmt.Errorf("too many peers: %w", syscall.E2BIG)

// PortOptions configures the underlay port. Lanes is the number of TUN queues.
type PortOptions struct {
	Port      uint16 // 0 lets the kernel choose
	Lanes     int
	Mark      uint32 // SO_MARK, 0 for none
	Mode      config.UnderlayMode
	Fragments bool // of outer packets are permitted
	// TooBig must be called for ICMP errors that report a path MTU, by any goroutine. Without it fragments are permitted.
	TooBig func(*toobig.Message)
}

// Config configures a Device. ReservePort, Plan, Rand, Wall, Clock, OnLoopStart, Route, Loops, OwnError, Resolve and Pool may be nil.
type Config struct {
	TUN         tun.Device
	OpenPort    func(PortOptions) (underlay.Port, error)
	ReservePort func(port uint16) error // keeps others from using a port while the link is down; 0 ends it; nil for none
	Log         *slog.Logger
	Plan        Planner                      // makes port plans for peers; nil for none
	Rand        io.Reader                    // crypto/rand when nil
	Wall        func() time.Time             // time.Now when nil; used for TAI64N and the time of the last handshake
	Clock       engine.Clock                 // engine.NewClock() when nil
	OnLoopStart func(loop string) func(bool) // engine.Config.OnLoopStart
	// Route looks up the route to an endpoint, for packets with a mark: the zero Route if it is
	// unknown. Without it no MTU is known before a router reports one, and RoutesChanged clears all
	// source addresses. Loops is then not used for peers with a session.
	Route func(to *underlay.Endpoint, mark uint32) Route
	// Loops reports whether the route to an endpoint leads into the tunnel itself, for packets from a port (0: any) with a mark. A missing route
	// does not. After an error the device does as before. nil: none does.
	Loops func(to *underlay.Endpoint, port uint16, mark uint32) (bool, error)
	// OwnError reports whether this host has made an ICMP error. nil: it makes none.
	OwnError func(*toobig.Message) bool
	// Resolve looks up the name of an endpoint, host:port, with a mark on its queries (0: none). Without it, names are not looked up again.
	Resolve func(ctx context.Context, name string, mark uint32) (Resolved, error)
	// Recall returns the last endpoint of a peer that the process before this one knew, if the two
	// had a session at its end. It also returns when sessions had post-quantum keys. own is the public
	// key of the device, which then renews the session. Recall must not call the device. nil for none.
	Recall func(own, peer noise.PublicKey) (SessionEndpoint, bool)
	// OnSession is called when the result of SessionEndpoints may have changed, perhaps often. It must not block or call the device. nil for none.
	OnSession func()
	GiveBack  bool           // engine.Config.GiveBack
	Pool      *workpool.Pool // workers that help busy lanes; nil for none. It must outlive the device
}

// Device is one interface: it connects its parts with each other.
type Device struct {
	cfg    Config
	log    *slog.Logger
	engine *engine.Engine
	clock  engine.Clock

	mu sync.Mutex // guards linkState, and writes of settings, outer and peers
	linkState
	settings
	outer portState
	peers peerSet

	inbound       inbound
	tasks         taskQueue
	exchangeTasks taskQueue    // taskExchange, which waits for all other work
	staged        stagedTrains // of all peers
	lookups       lookups
	loops         loopDestinations
	icmp          icmpErrors
	counts        counters
	stalls        stallWatch
	changed       changedPeers      // since Snapshot
	renewals      pace.Turns[*Peer] // of sessions that the device has erased; peers for which packets wait need no turn
	exchanges     pace.Turns[*Peer] // post-quantum exchanges that this device offers, until there is a session with the key
	routeTurns    pathmtu.Turns
	failuresLog   pace.Rate // of warnings about peers that do not answer
	pathMTULog    pace.Rate // of messages about path MTUs

	stop    chan struct{} // closed by Close
	done    chan struct{} // closed when everything has ended
	workers sync.WaitGroup
}

// linkState is the state of the interface.
type linkState struct {
	started      bool
	linkUp       bool               // the interface is administratively up
	up, closed   bool               // up: the port is open; it may be closed while the link is up
	handingOver  bool               // Leave was called
	lastSessions *[]SessionEndpoint // of sessionEndpoints when the device ended; nil before, and after Leave
	startFirst   []noise.PublicKey  // peers that had a session in the previous device; nil after they have started
	starting     atomic.Bool        // peerSet.start runs, so that peers may start by themselves
	reading      bool               // the lanes read the TUN
	expiry       *time.Timer        // of packets that are staged while the link is down; nil before it was down
}

// settings are the configured values. Values that lanes and workers read are atomic.
type settings struct {
	private      noise.PrivateKey
	listenPort   uint16
	identity     atomic.Pointer[identity]
	spreading    atomic.Pointer[spreadConfig]
	mtu          atomic.Int64  // of the TUN, 0 before it is known
	mark         atomic.Uint32 // fwmark of outer packets, 0 for none
	underlayMode atomic.Uint32 // config.UnderlayMode
	fragments    atomic.Bool   // config.Settings.OuterFragments
	postQuantum  atomic.Uint32 // config.PostQuantum
}

// Format prints the interface's name for every verb: a Device holds secrets.
func (d *Device) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "device "+d.cfg.TUN.Name()) }

// LogValue logs the interface's name.
func (d *Device) LogValue() slog.Value { return slog.StringValue(d.cfg.TUN.Name()) }

// New returns a device over cfg.TUN, which it owns from now on. Call Start to run it.
func New(cfg Config) *Device {
	if cfg.Rand == nil {
		cfg.Rand = rand.Reader
	}
	if cfg.Wall == nil {
		cfg.Wall = time.Now
	}
	if cfg.ReservePort == nil {
		cfg.ReservePort = func(uint16) error { return nil }
	}
	d := &Device{
		cfg:   cfg,
		log:   cfg.Log,
		clock: engine.NewClock(),
		stop:  make(chan struct{}),
		done:  make(chan struct{}),
	}
	if cfg.Clock != nil {
		d.clock = cfg.Clock
	}
	d.outer.dev, d.peers.dev, d.inbound.dev, d.lookups.dev, d.icmp.dev, d.counts.dev, d.stalls.dev = d, d, d, d, d, d, d
	d.peers.list = map[noise.PublicKey]*Peer{}
	d.counts.tunDropsBefore.Store(d.counts.tunQueueDrops())
	d.inbound.gate.Init()
	d.tasks.init()
	d.exchangeTasks.init()
	d.renewals.At, d.renewals.Come = func(p *Peer) *pace.Turn { return &p.handshake.turn }, func(p *Peer) { p.post(taskRenew) }
	d.renewals.SetLimit(maxRenewals)
	d.exchanges.At, d.exchanges.Come = func(p *Peer) *pace.Turn { return p.quantum.turn() }, (*Peer).postExchange
	d.exchanges.SetLimit(maxExchanges)
	d.spreading.Store(&spreadConfig{ports: spread.DefaultPorts})
	d.outer.sources.Log, d.outer.groups.Log, d.outer.selection.Log = cfg.Log, cfg.Log, cfg.Log
	d.outer.selection.Reset(nil, spread.Ports{})
	d.engine = engine.New(engine.Config{
		Device: cfg.TUN, Control: d, Clock: d.clock, Rand: cfg.Rand, OnLoopStart: cfg.OnLoopStart,
		Pool: cfg.Pool, GiveBack: cfg.GiveBack,
	})
	return d
}

// Start starts the device. It sends and receives while the interface is up. Start does nothing when called again or after Close.
func (d *Device) Start() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.started || d.closed {
		return
	}
	d.started = true
	for range runtime.NumCPU() {
		d.workers.Go(d.runWorker)
	}
	go d.supervise()
}

// Done returns a channel that is closed when the device has ended, by Close or because the interface was deleted.
func (d *Device) Done() <-chan struct{} { return d.done }

// Close deletes the interface, wipes all sessions and waits until all goroutines have ended. Further calls do no harm.
func (d *Device) Close() {
	d.mu.Lock()
	first, started := !d.closed, d.started
	d.closed = true
	d.mu.Unlock()
	if first {
		if err := d.cfg.TUN.Close(); err != nil {
			d.log.Warn("closing the TUN device to stop the tunnel failed, the interface may stay until this process ends", "error", err)
		}
		if !started {
			close(d.done)
		}
	}
	<-d.done
}

// supervise applies link events until the interface is gone, then stops the device. The first event is the interface's present state.
func (d *Device) supervise() {
	for ev := range d.cfg.TUN.Events() {
		d.applyLinkEvent(ev)
	}
	d.mu.Lock()
	d.closed = true
	leaving := d.handingOver
	if !leaving { // else Leave closes the port
		last := d.sessionEndpoints()
		d.lastSessions = &last
		d.down()
		d.peers.remove(slices.Collect(maps.Values(d.peers.list))...)
	}
	d.mu.Unlock()
	if err := d.cfg.TUN.Close(); err != nil {
		d.log.Debug("closing the TUN device after the interface's end failed, its descriptors close with this process", "error", err)
	}
	d.engine.Wait()
	close(d.stop)
	d.workers.Wait()
	if !leaving {
		d.log.Info("interface closed")
	}
	close(d.done)
}

// applyLinkEvent applies a link event: link up opens the port, link down closes it, as in the in-kernel WireGuard.
func (d *Device) applyLinkEvent(ev tun.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	d.linkUp = ev.Up
	if int64(ev.MTU) != d.mtu.Load() {
		d.setMTU(ev.MTU)
	}
	switch {
	case ev.Up && !d.up:
		if err := d.outer.bringUp(d.listenPort, d.mark.Load()); err != nil {
			d.outer.logFailure(err)
		}
	case !ev.Up:
		if d.stopReading() { // before the port closes
			d.engine.SendWaiting()
		}
		if d.up {
			d.down()
			d.holdStaged()
			d.log.Info("interface down, listen port closed and sessions erased")
		}
		return
	}
	d.readTUN() // also without a port: nothing says when there will be one, so packets are dropped and counted
}

// holdStaged drops all staged packets after stagedHold, if there is no port then. The caller holds mu.
func (d *Device) holdStaged() {
	if d.expiry != nil {
		d.expiry.Stop()
	}
	d.expiry = time.AfterFunc(stagedHold, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.up {
			d.staged.dropAll()
		}
	})
}

// stagedHold is the time for which packets stay staged while the link is down. If it goes down and up at once, lanes may stage packets of the
// new link before the device knows of either.
const stagedHold = time.Second

// setMTU applies a new MTU of the TUN. The caller holds mu.
func (d *Device) setMTU(mtu int) {
	d.mtu.Store(int64(mtu))
	d.engine.SetMTU(mtu)
	if !d.up { // no peer runs
		return
	}
	for p := range d.peers.locked() {
		p.mtu.update(d.clock())
		p.armTimer(d.clock())
	}
}

// readTUN lets the lanes read the TUN. Before the port is open they could only drop the packets
// that wait there. The host sends as soon as the interface is up, and during the pause of an
// upgrade. The caller holds mu: the lanes start before Leave waits for them, or not at all.
func (d *Device) readTUN() {
	if !d.reading {
		d.reading = true
		d.engine.Start()
	}
}

// stopReading ends readTUN, and reports whether it had begun. All that the lanes have read is sent. Other packets wait in the TUN. The caller holds mu.
func (d *Device) stopReading() (stopped bool) {
	if !d.reading {
		return false
	}
	if err := d.engine.Stop(); err != nil {
		d.log.Warn("stopping reads from the TUN device failed, packets are dropped until the listen port is open", "error", err)
		return false
	}
	d.reading = false
	return true
}

// down erases all sessions and closes the port. Peers stop first, so that none sends while the port closes. Staged packets stay. The caller
// holds mu.
func (d *Device) down() {
	for _, p := range d.peers.list {
		p.stop()
	}
	d.outer.close()
}

// runWorker handles handshake messages and peers' tasks until the device stops. Exchanges wait while
// there is anything else to do: a peer without a session has no connection at all.
func (d *Device) runWorker() {
	for {
		if d.runUrgent() {
			continue
		}
		select {
		case <-d.stop:
			return
		case m := <-d.inbound.gate.Reserved():
			d.runMessage(m)
		case m := <-d.inbound.gate.Shared():
			d.runMessage(m)
		case <-d.tasks.waiting:
			d.runTask()
		case <-d.exchangeTasks.waiting:
			d.runExchange()
		}
	}
}

// runUrgent handles a handshake message or a peer's tasks, and reports whether any waited.
func (d *Device) runUrgent() bool {
	select {
	case m := <-d.inbound.gate.Reserved():
		d.runMessage(m)
	case m := <-d.inbound.gate.Shared():
		d.runMessage(m)
	case <-d.tasks.waiting:
		d.runTask()
	default:
		return false
	}
	return true
}

func (d *Device) runMessage(m *admission.Message) { d.engine.SlowDrops.Add(d.inbound.take(m), 1) }

// runTask runs the tasks of the first peer that waits in tasks.
func (d *Device) runTask() {
	p := d.tasks.take()
	p.runTasks(p.tasks.Swap(0))
	d.stalls.check()
}

// Handshake implements engine.Control: it copies a handshake message to a queue.
func (d *Device) Handshake(msg []byte, from underlay.Endpoint) drop.Reason {
	if len(msg) > wire.InitiationSize {
		return drop.RXBadLength
	}
	if d.inbound.hasUnknownIndex(msg) {
		return drop.RXUnknownIndex
	}
	var checker *noise.CookieChecker
	if id := d.identity.Load(); id != nil {
		checker = id.checker
	}
	why := d.inbound.gate.Put(msg, from, checker, recipients{d}, d.clock())
	if why == drop.HSBadMAC1 {
		d.inbound.refusals.suppressed.Add(1)
	}
	return why
}

// noteGarbage is called with the number of handshakes so far.
func (d *Device) noteGarbage(handshakes uint64) {
	if handshakes%garbageHandshakes == 0 {
		d.engine.GiveBack()
	}
}

// garbageHandshakes is the number of handshakes after which their garbage is given back: some 20 MiB.
const garbageHandshakes = 4096

// jitter returns up to peer.MaxJitter ns, so that two peers do not initiate at the same time repeatedly (paper §6.1).
func (d *Device) jitter() int64 {
	var b [8]byte
	if _, err := io.ReadFull(d.cfg.Rand, b[:]); err != nil {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(b[:]) % uint64(peer.MaxJitter))
}
