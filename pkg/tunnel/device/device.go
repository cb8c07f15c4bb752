// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
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
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
)

// MaxPeers is the largest number of peers of a device: that of the in-kernel WireGuard (MAX_PEERS_PER_DEVICE).
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
	// Route looks up the route to an endpoint, for packets with a mark: the zero Route if it is unknown. Without it no MTU is known before a router
	// reports one, RoutesChanged clears all source addresses, and Loops is not used for peers with a session.
	Route func(to *underlay.Endpoint, mark uint32) Route
	// Loops reports whether the route to an endpoint leads into the tunnel itself, for packets from a port (0: any) with a mark. A missing route
	// does not. After an error the device does as before. nil: none does.
	Loops func(to *underlay.Endpoint, port uint16, mark uint32) (bool, error)
	// OwnError reports whether this host has made an ICMP error. nil: it makes none.
	OwnError func(*toobig.Message) bool
	// Resolve looks up the name of an endpoint, host:port, with a mark on its queries (0: none). Without it, names are not looked up again.
	Resolve func(ctx context.Context, name string, mark uint32) (Resolved, error)
	// Recall returns the last endpoint of a peer as the process before this one knew it, if the two had a session when that process ended. own
	// is the public key of the device, which then renews the session. Recall must not call the device. nil for none.
	Recall func(own, peer noise.PublicKey) (netip.AddrPort, bool)
	// OnSession is called when the result of SessionEndpoints may have changed, perhaps often. It must not block or call the device. nil for none.
	OnSession func()
	GiveBack  bool           // engine.Config.GiveBack
	Pool      *workpool.Pool // workers that help busy lanes; nil for none. It must outlive the device
}

// Device is one interface.
type Device struct {
	cfg    Config
	log    *slog.Logger
	engine *engine.Engine
	clock  engine.Clock

	mu sync.Mutex // guards linkState, and writes of settings, portState and peers
	linkState
	settings
	portState
	peersMu    sync.RWMutex // guards peers for readers that do not hold mu
	peers      map[noise.PublicKey]*Peer
	atEndpoint endpointIndex // of peers

	work
	counters
	staged    stagedTrains      // of all peers
	changed   changedPeers      // since Snapshot
	renewals  pace.Turns[*Peer] // of sessions that the device has erased; peers for which packets wait need no turn
	exchanges pace.Turns[*Peer] // post-quantum exchanges
	stalls    stallWatch
	lifetime
}

// linkState is the state of the interface.
type linkState struct {
	started     bool
	linkUp      bool              // the interface is administratively up
	up, closed  bool              // up: the port is open; it may be closed while the link is up
	handingOver bool              // Leave was called
	startFirst  []noise.PublicKey // peers that had a session in the previous device; nil after they have started
	starting    atomic.Bool       // startPeers runs, so that peers may start by themselves
	reading     bool              // the lanes read the TUN
	expiry      *time.Timer       // of packets that are staged while the link is down; nil before it was down
}

// settings are the configured values. Those that lanes and workers read are atomic.
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

// portState is the port, and its sockets beyond one per lane.
type portState struct {
	port      atomic.Pointer[portRef] // nil while down
	sources   sourcePool
	groups    sendGroups
	selection laneSelection
	guard     atomic.Pointer[guardRef] // nil while there is none
}

// work is what lanes leave to worker goroutines, and its limits.
type work struct {
	handshakes  handshakeQueue
	tasks       taskQueue
	limiter     peer.Limiter // of messages with a cookie, under load
	known       peer.Limiter // of messages without one from known endpoints, under load
	cookies     cookieLimit  // for other messages without one, under load
	endpoints   endpointSet  // of peers that run
	refusals    refusals
	failuresLog pace.Rate // of warnings about peers that do not answer
	pathMTULog  pace.Rate // of messages about path MTUs
	loops       loopDestinations
	routeTurns  lookUpTurns
	lookups     lookups
}

// counters count for all present and removed peers.
type counters struct {
	handshakeCounts handshakeCounters
	icmpCounts      icmpCounters
	socketDrops     socketDrops
	quantumCounts   quantumCounters
	tunDropsBefore  atomic.Uint64 // of a persistent interface, while no daemon served it
}

// lifetime ends the device's goroutines.
type lifetime struct {
	stop    chan struct{} // closed by Close
	done    chan struct{} // closed when everything has ended
	workers sync.WaitGroup
}

// Format prints the interface's name for every verb: a Device holds secrets.
func (d *Device) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "device "+d.cfg.TUN.Name()) }

// LogValue logs the interface's name.
func (d *Device) LogValue() slog.Value { return slog.StringValue(d.cfg.TUN.Name()) }

// portRef boxes the interface for atomic.Pointer.
type portRef struct{ underlay.Port }

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
		cfg:      cfg,
		log:      cfg.Log,
		clock:    engine.NewClock(),
		peers:    map[noise.PublicKey]*Peer{},
		lifetime: lifetime{stop: make(chan struct{}), done: make(chan struct{})},
	}
	if cfg.Clock != nil {
		d.clock = cfg.Clock
	}
	d.tunDropsBefore.Store(d.tunQueueDrops())
	d.handshakes.init()
	d.endpoints.init()
	d.cookies.init()
	d.tasks.init()
	d.renewals.At, d.renewals.Come = func(p *Peer) *pace.Turn { return &p.renewal }, func(p *Peer) { p.post(taskRenew) }
	d.renewals.SetLimit(maxRenewals)
	d.exchanges.At, d.exchanges.Come = func(p *Peer) *pace.Turn { return p.quantum.turn() }, func(p *Peer) { p.post(taskExchange) }
	d.exchanges.SetLimit(maxExchanges)
	d.spreading.Store(&spreadConfig{ports: spread.DefaultPorts})
	d.sources.log, d.groups.log, d.selection.log, d.selection.reason = cfg.Log, cfg.Log, cfg.Log, errDown
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
		d.down()
		d.removePeers(slices.Collect(maps.Values(d.peers))...)
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
