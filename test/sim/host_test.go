// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
)

// host is one machine. Its process, a device, may die and start again. The simulation's goroutine alone calls its methods.
type host struct {
	*device.Device
	sim     *sim
	n       int
	key     noise.PrivateKey
	tun     *tuntest.Fake
	port    *underlaytest.Fake // the last that was opened
	kept    *underlaytest.Fake // its successor takes over what waits in it; nil for none
	starts  uint64             // of processes
	began   time.Time
	reads   atomic.Int64 // of the clock: a device without timers does not read it
	ahead   atomic.Int64 // ns by which the monotonic clock is ahead, after suspends
	wall    atomic.Int64 // ns by which the wall clock is ahead
	maxWall int64
	watches sync.WaitGroup
	dead    tally // of processes that died
	down    bool  // the interface is down
	// snapshot is what the next process has of this one, nil while no upgrade is under way.
	snapshot *device.State
	rounds   []*device.State // of changes since
}

func newHost(s *sim, n int) *host {
	h := &host{sim: s, n: n, began: time.Now()}
	h.key, _ = noise.NewPrivateKey(seeded(s.schedule.Seed, uint64(n))) // the reader has no errors
	return h
}

// seeded returns a source of random bytes.
func seeded(seed, stream uint64) *lockedSource {
	var key [32]byte
	r := rand.NewPCG(seed, stream)
	for i := range key {
		key[i] = byte(r.Uint64())
	}
	return &lockedSource{r: rand.NewChaCha8(key)}
}

// lockedSource is an io.Reader of random bytes for any goroutine.
type lockedSource struct {
	mu sync.Mutex
	r  *rand.ChaCha8
}

// Read implements io.Reader.
func (s *lockedSource) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r.Read(b)
}

// alive reports whether the process runs.
func (h *host) alive() bool { return h.Device != nil }

// online reports whether programs of the machine can send through the tunnel.
func (h *host) online() bool { return h.alive() && !h.down }

// clock is the device's monotonic clock.
func (h *host) clock() int64 {
	h.reads.Add(1)
	return int64(time.Since(h.began)) + 1 + h.ahead.Load()
}

// create makes the device of a new process.
func (h *host) create() {
	h.starts++
	h.down = false
	h.snapshot = nil
	lanes, plan := h.sim.schedule.Lanes, device.Planner(nil)
	if h.sim.schedule.Plans {
		plan = func(_ netip.AddrPort, _ *underlay.Endpoint, _ uint32, from spread.Ports) []uint16 {
			return from.All()[:4]
		}
	}
	h.tun = tuntest.NewFake(tuntest.FakeConfig{Queues: lanes, Depth: 8192, Features: tun.Features{TSO: true, USO: true}})
	h.Device = device.New(device.Config{
		TUN: h.tun, Log: slog.New(logWatch{slog.DiscardHandler, h}), Clock: h.clock,
		Rand:     seeded(h.sim.schedule.Seed, uint64(h.n)<<32|h.starts),
		Wall:     func() time.Time { return time.Now().Add(time.Duration(h.wall.Load())) },
		OpenPort: h.openPort, Plan: plan,
	})
	for q := range lanes {
		h.watches.Go(func() { h.receive(h.tun, q) })
	}
}

func (h *host) openPort(o device.PortOptions) (underlay.Port, error) {
	v4 := h.sim.schedule.inside(h.n)
	if a := h.sim.network.access[h.n]; a.forges { // also its hellos say so
		v4 = outside(h.n, a.generation+100)
	}
	v6, _ := netip.AddrFromSlice(append(make([]byte, 12), v4.AsSlice()...)) // not used
	p, err := h.sim.network.lan.Open(v4, v6, o.Port, o.Lanes)
	if err != nil {
		return nil, err
	}
	if h.kept != nil {
		p.TakeOver(h.kept)
	}
	h.port, h.kept = p, nil
	return p, nil
}

// receive passes what a queue of a TUN gets to the model, until it is closed.
func (h *host) receive(t *tuntest.Fake, queue int) {
	for {
		train, err := t.Receive(context.Background(), queue)
		if err != nil {
			return
		}
		h.sim.model.take(h.n, train)
	}
}

// start starts the process with the host's configuration.
func (h *host) start() {
	h.create()
	h.must("configuring", h.Configure(h.configuration()))
	h.sim.network.change(func() {
		h.sim.network.access[h.n].alive = true
		h.sim.network.watch.liveness.disturbed(h.n)
	})
	h.Start()
}

func (h *host) must(doing string, err error) {
	if err != nil {
		h.sim.report.add("error", "host %d: %s: %v", h.n, doing, err)
	}
}

func (h *host) configuration() config.Device {
	listen, mode := uint16(port), config.SpreadOff
	if h.sim.schedule.Spread {
		mode = config.SpreadAuto
	}
	c := config.Device{PrivateKey: &h.key, ListenPort: &listen, Settings: config.Settings{Spread: &mode}, Peers: []config.Peer{h.silentPeer(0)}}
	if h.sim.schedule.PostQuantum && h.n%3 != 0 {
		auto := config.PostQuantumAuto
		c.PostQuantum = &auto
	}
	if h.sim.schedule.outageAt(h.n) {
		for i := range silentPeers {
			c.Peers = append(c.Peers, h.silentPeer(1+i))
		}
	}
	if h.sim.schedule.Spray {
		ports := config.Spray(4)
		c.Spray, c.SpreadPorts = &ports, &spread.Ports{First: 61000, Last: 61003} // few, since those in use are checked all the time
	}
	for _, p := range h.sim.schedule.pairs() {
		if p[0] == h.n {
			c.Peers = append(c.Peers, h.peer(p[1]))
		} else if p[1] == h.n {
			c.Peers = append(c.Peers, h.peer(p[0]))
		}
	}
	return c
}

// peer is the configuration of another host. An address of a host behind a NAT is not known beforehand.
func (h *host) peer(other int) config.Peer {
	o := h.sim.hosts[other]
	v4, v6 := devicetest.Inner(byte(other))
	p := config.Peer{
		PublicKey:  o.key.Public(),
		AllowedIPs: []config.AllowedIP{{Prefix: netip.PrefixFrom(v4, 32)}, {Prefix: netip.PrefixFrom(v6, 128)}},
	}
	if (h.n+other)%2 == 1 {
		p.PresharedKey = &noise.PresharedKey{1, byte(h.n + other)}
	}
	if !h.sim.schedule.nated(other) {
		p.Endpoint = &config.Endpoint{AddrPort: netip.AddrPortFrom(outside(other, 0), port)}
	}
	if h.sim.schedule.nated(h.n) {
		every := uint16(keepaliveEvery / time.Second)
		p.Keepalive = &every
	}
	return p
}

// silentPeer is a peer that never answers, for packets that wait for a session in vain.
func (h *host) silentPeer(n int) config.Peer {
	return config.Peer{
		PublicKey:  noise.PublicKey{9, byte(h.n), byte(n)},
		Endpoint:   &config.Endpoint{AddrPort: stranger(silent)},
		AllowedIPs: []config.AllowedIP{{Prefix: netip.PrefixFrom(silentAddress(n), 24).Masked()}},
	}
}

// send passes a train to the TUN.
func (h *host) send(queue int, train []byte) {
	h.must("sending", h.tun.Inject(queue%h.sim.schedule.Lanes, train))
}

// kill ends the process without a farewell.
func (h *host) kill() {
	h.sim.network.change(func() {
		h.sim.network.access[h.n].alive = false
		h.sim.network.access[h.n].captured = nil // a new process cannot know what the old one has accepted
		h.sim.network.watch.disturbed(h.n)
	})
	h.Close()
	c := h.tally() // packets that wait for a session are counted no more
	c.txDropped += uint64(max(h.sim.held(h), 0))
	h.dead = c
	h.Device, h.snapshot = nil, nil
}

// prepare begins to hand the interface over to a new process.
func (h *host) prepare() *device.State {
	state, err := h.Snapshot()
	h.must("preparing an upgrade", err)
	h.snapshot, h.rounds = state, nil
	return state
}

// sendChanges passes on what has changed since prepare, or since sendChanges was last called.
func (h *host) sendChanges() { h.rounds = append(h.rounds, h.Changes()) }

// upgrade completes the handover.
func (h *host) upgrade() {
	h.sim.network.change(func() { h.sim.network.watch.disturbed(h.n) })
	if h.port != nil {
		h.port.Keep()
	}
	last, err := h.Leave(nil)
	h.must("upgrading", err)
	h.kept = h.port
	old, snapshot, rounds := h.Device, h.snapshot, append(h.rounds, last)
	h.create()
	h.must("resuming", h.Resume(h.passOn(snapshot)))
	for _, changes := range rounds {
		h.must("updating", h.Update(h.passOn(changes)))
	}
	h.Start()
	h.AddCounters(old.Retire())
}

// passOn returns a state as another process gets it.
func (h *host) passOn(s *device.State) *device.State {
	text, err := s.Encode()
	h.must("encoding", err)
	s, err = device.ParseState(text)
	h.must("parsing", err)
	return s
}

// setUp sets the interface up or down.
func (h *host) setUp(up bool) {
	h.sim.network.change(func() { h.sim.network.watch.disturbed(h.n) })
	h.down = !up
	h.tun.SetUp(up)
	synctest.Wait()
}

// stepWall steps the wall clock.
func (h *host) stepWall(by time.Duration) {
	h.sim.network.change(func() { h.sim.network.watch.liveness.disturbed(h.n) })
	h.maxWall = max(h.maxWall, h.wall.Add(int64(by)))
}

// wallIsRight reports whether peers accept all initiations: they refuse those that are older than the last.
func (h *host) wallIsRight() bool { return h.wall.Load() == h.maxWall }

// suspend lets the machine sleep: the monotonic clock advances, the timers do not.
func (h *host) suspend(by time.Duration) {
	h.sim.network.change(func() { h.sim.network.watch.disturbed(h.n) })
	h.ahead.Add(int64(by))
	h.MachineResumed()
	h.ClockJumped()
}

// dropCounts are the packets and messages that the present process has dropped, by reason.
func (h *host) dropCounts() map[string]uint64 {
	s := h.Stats().(device.Stats)
	all := s.Drops
	for _, l := range append(s.Lanes, s.Slow) {
		for reason, n := range l.Drops {
			all[reason] += n
		}
	}
	return all
}

// tally is what a host's processes have counted.
type tally struct {
	txDropped, rxDropped uint64 // packets and messages
	txControl, rxControl uint64 // control messages to send, and received ones that were accepted
}

// tally returns what all processes have counted.
func (h *host) tally() tally {
	t, drops, s := h.dead, h.dropCounts(), h.Stats().(device.Stats)
	t.txDropped += sum(drops, true)
	t.rxDropped += sum(drops, false)
	for _, l := range append(s.Lanes, s.Slow) {
		t.txControl += l.TxControl
		t.rxControl += l.RxControl
	}
	return t
}

// end closes the device and waits for the goroutines that observe it.
func (h *host) end() {
	if h.alive() {
		h.Close()
	}
	h.watches.Wait()
}

// logWatch is a slog.Handler: no simulated fault may cause a message of level error, or a stall.
type logWatch struct {
	slog.Handler
	h *host
}

// Enabled implements slog.Handler. All levels are enabled, so that all arguments are evaluated.
func (logWatch) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (w logWatch) Handle(_ context.Context, r slog.Record) error {
	stall := strings.HasPrefix(r.Message, "packets to the peer stalled")
	if r.Level < slog.LevelError && !stall {
		return nil
	}
	kind, text := "log", r.Message
	if stall {
		kind = "stall"
	}
	r.Attrs(func(a slog.Attr) bool {
		text += fmt.Sprintf(" %v", a)
		return true
	})
	w.h.sim.report.add(kind, "host %d logged: %s", w.h.n, text)
	return nil
}
