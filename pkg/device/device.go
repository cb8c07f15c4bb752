// SPDX-License-Identifier: Apache-2.0

// Package device is one WireGuard interface: it applies configuration, owns the peers and their handshakes, timers and
// staged packets, and gives snapshots. Packets of live sessions never come here; the engine carries them.
//
// Concurrency: all exported methods may be called from any goroutine. Locks are taken in the order Device.mu, then
// Peer.mu; lanes take Peer.mu, and the engine's slow lane behind it, only for packets without a session.
package device

import (
	"crypto/rand"
	"errors"
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

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/crew"
	"github.com/ropewalk/ropewalk/pkg/engine"
	"github.com/ropewalk/ropewalk/pkg/noise"
	"github.com/ropewalk/ropewalk/pkg/peer"
	"github.com/ropewalk/ropewalk/pkg/spread"
	"github.com/ropewalk/ropewalk/pkg/tun"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// MaxPeers is how many peers a device takes.
const MaxPeers = 1 << 16

// ErrTooManyPeers is returned by Configure when a change would exceed MaxPeers.
var ErrTooManyPeers = fmt.Errorf("too many peers: %w", syscall.E2BIG)

// PortOptions says how the underlay port is to be opened. The lanes are one per TUN queue.
type PortOptions struct {
	Port  uint16 // 0 lets the kernel choose
	Lanes int
	Mark  uint32 // SO_MARK, 0 for none
	Mode  config.UnderlayMode
	CPUs  config.ReceiveCPUs
}

// Config is what a Device is made of. Plan, Rand, Wall, Clock and Begin may be nil.
type Config struct {
	TUN      tun.Device
	OpenPort func(PortOptions) (underlay.Port, error)
	Log      *slog.Logger
	Plan     Planner           // nil plans nothing
	Rand     io.Reader         // crypto/rand when nil
	Wall     func() time.Time  // time.Now when nil; used for TAI64N and the time of the last handshake
	Clock    engine.Clock      // engine.NewClock() when nil
	Begin    func(loop string) // engine.Config.OnLoopStart
	Crew     *crew.Crew        // helps lanes that have several trains at once; nil for none. It must outlive the device
}

// Device is one interface.
type Device struct {
	cfg    Config
	log    *slog.Logger
	engine *engine.Engine
	clock  engine.Clock

	// mu guards configuration: everything below that is not atomic.
	mu          sync.Mutex
	private     noise.PrivateKey
	listenPort  uint16
	mtu         int // of the TUN, 0 before it is known
	started     bool
	linkUp      bool // the interface is administratively up
	up, closed  bool // up: so is the device; without a port it cannot follow the link
	handingOver bool // its state is wanted at the end

	peersMu sync.RWMutex // guards peers for readers that do not hold mu
	peers   map[noise.PublicKey]*Peer

	identity        atomic.Pointer[identity]
	spreading       atomic.Pointer[spreadConfig]
	sources         sourcePool
	selection       laneSelection
	guard           atomic.Pointer[guardRef]           // nil while there is none
	mark            atomic.Uint32                      // changed by who holds mu
	underlayMode    atomic.Uint32                      // config.UnderlayMode, changed by who holds mu
	cpus            atomic.Pointer[config.ReceiveCPUs] // nil for none, changed by who holds mu
	port            atomic.Pointer[portRef]            // nil while down
	handshakes      handshakeQueue
	tasks           taskQueue
	limiter         peer.Limiter
	refusals        refusals
	staged          atomic.Int64 // bytes held for all peers
	handshakeCounts handshakeCounters
	socketDrops     socketDrops

	stop    chan struct{} // closed by Close
	done    chan struct{} // closed when everything has ended
	workers sync.WaitGroup
}

// Format prints the interface's name, whatever the verb: a Device holds secrets.
func (d *Device) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "device "+d.cfg.TUN.Name()) }

// LogValue logs the interface's name.
func (d *Device) LogValue() slog.Value { return slog.StringValue(d.cfg.TUN.Name()) }

// portRef boxes the interface for atomic.Pointer.
type portRef struct{ underlay.Port }

// New returns a device over cfg.TUN, which it owns from now on. Start makes it run.
func New(cfg Config) *Device {
	if cfg.Rand == nil {
		cfg.Rand = rand.Reader
	}
	if cfg.Wall == nil {
		cfg.Wall = time.Now
	}
	d := &Device{
		cfg:   cfg,
		log:   cfg.Log,
		clock: engine.NewClock(),
		peers: map[noise.PublicKey]*Peer{},
		stop:  make(chan struct{}),
		done:  make(chan struct{}),
	}
	if cfg.Clock != nil {
		d.clock = cfg.Clock
	}
	d.handshakes.init()
	d.tasks.init()
	d.spreading.Store(&spreadConfig{ports: spread.DefaultPorts})
	d.sources.log, d.selection.log, d.selection.reason = cfg.Log, cfg.Log, errDown
	d.engine = engine.New(engine.Config{
		Device: cfg.TUN, Control: d, Clock: d.clock, Rand: cfg.Rand, OnLoopStart: cfg.Begin,
		Pool: cfg.Crew,
	})
	return d
}

// Start begins to carry packets as soon as the interface is up. It must be called once.
func (d *Device) Start() {
	d.mu.Lock()
	d.started = true
	d.mu.Unlock()
	for range runtime.NumCPU() {
		d.workers.Go(d.runWorker)
	}
	d.engine.Start()
	go d.supervise()
}

// Done is closed when the device has ended: after Close, or because the interface was deleted.
func (d *Device) Done() <-chan struct{} { return d.done }

// Close deletes the interface, wipes all sessions and waits until all goroutines have ended. It may be called repeatedly.
func (d *Device) Close() {
	d.mu.Lock()
	first, started := !d.closed, d.started
	d.closed = true
	d.mu.Unlock()
	if first {
		if err := d.cfg.TUN.Close(); err != nil {
			d.log.Warn("closing the tun device", "error", err)
		}
		if !started {
			close(d.done)
		}
	}
	<-d.done
}

// supervise follows the interface's state until it is gone, then takes everything down.
func (d *Device) supervise() {
	for ev := range d.cfg.TUN.Events() {
		d.applyLinkEvent(ev)
	}
	d.mu.Lock()
	d.closed = true
	d.down()
	leaving := d.handingOver
	if !leaving {
		d.removePeers(slices.Collect(maps.Values(d.peers))...)
	}
	d.mu.Unlock()
	if err := d.cfg.TUN.Close(); err != nil {
		d.log.Debug("closing the tun device", "error", err)
	}
	d.engine.Wait()
	close(d.stop)
	d.workers.Wait()
	if !leaving {
		d.log.Info("interface closed", "interface", d.cfg.TUN.Name())
	}
	close(d.done)
}

// applyLinkEvent applies the interface's state: link up opens the port, link down closes it, as the in-kernel device does.
func (d *Device) applyLinkEvent(ev tun.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	d.linkUp = ev.Up
	if ev.MTU != d.mtu {
		d.mtu = ev.MTU
		d.engine.SetMTU(ev.MTU)
		if err := d.cfg.TUN.SetTrainLimit(TrainLimit(ev.MTU)); err != nil {
			d.log.Warn("setting the train limit; trains may need two sends", "error", err)
		}
	}
	switch {
	case ev.Up && !d.up:
		if err := d.bringUp(d.listenPort, d.mark.Load()); err != nil {
			d.log.Error("bringing the interface up", "port", d.listenPort, "hint", portHint(err), "error", err)
		}
	case !ev.Up && d.up:
		d.down()
		d.log.Info("interface down")
	}
}

// portHint says what to do when the port cannot be opened.
func portHint(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "free this port, or set another listen port"
	case errors.Is(err, syscall.EMFILE):
		return "raise the limit of open files (ulimit -n)"
	}
	return "set the listen port again to retry"
}

// TrainLimit returns the gso_max_size with which TCP builds the largest trains that still fit one UDP GSO send: the
// kernel subtracts up to 320 bytes for headers and divides by the segment size (sk_setup_caps, tcp_tso_autosize).
func TrainLimit(mtu int) int {
	const kernelHeadroom, tcpHeaders = 400, 52
	segments := min(underlay.MaxRunSegments, underlay.MaxDatagramRun/max(mtu+32, 64))
	return min(max(segments*(mtu-tcpHeaders)+kernelHeadroom, 4096), 65536)
}

// bringUp opens the port and starts all peers. The caller holds mu.
func (d *Device) bringUp(listen uint16, mark uint32) error {
	port, err := d.openPort(listen, mark)
	if err != nil {
		return err
	}
	if err := d.attachPort(port); err != nil {
		return err
	}
	d.up = true
	d.log.Info("interface up", "port", port.LocalPort())
	for _, p := range d.peers {
		p.start()
	}
	return nil
}

func (d *Device) openPort(port uint16, mark uint32) (underlay.Port, error) {
	p, err := d.cfg.OpenPort(PortOptions{
		Port: port, Lanes: d.engine.Lanes(), Mark: mark, Mode: config.UnderlayMode(d.underlayMode.Load()), CPUs: d.receiveCPUs(),
	})
	if err != nil {
		return nil, fmt.Errorf("opening UDP port %d: %w", port, err)
	}
	return p, nil
}

// attachPort makes port the one in use, in place of the present one. The caller holds mu.
func (d *Device) attachPort(port underlay.Port) error {
	d.closeSources()
	if err := d.engine.Detach(); err != nil {
		d.log.Warn("closing the old port", "error", err)
	}
	d.socketDrops.follow(nil, d.engine.Lanes())
	d.resetGuard(port)
	if err := d.engine.Attach(port); err != nil {
		d.resetGuard(nil)
		return errors.Join(err, port.Close())
	}
	d.listenPort = port.LocalPort()
	d.port.Store(&portRef{port})
	d.socketDrops.follow(port, d.engine.Lanes())
	d.resetSources()
	d.resetSelection()
	d.renewHellos(true)
	return nil
}

// down forgets all sessions and closes the port. Peers go first: they have nothing to say that could not be sent. The
// caller holds mu.
func (d *Device) down() {
	d.up = false
	for _, p := range d.peers {
		p.stop()
	}
	d.closeSources()
	d.resetGuard(nil)
	d.port.Store(nil)
	if err := d.engine.Detach(); err != nil {
		d.log.Warn("closing the port", "error", err)
	}
	d.socketDrops.follow(nil, d.engine.Lanes())
}
