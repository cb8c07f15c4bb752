// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/receive"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/send"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// Config configures an Engine. All fields except OnLoopStart, Pool and GiveBack are required.
type Config struct {
	Device  tun.Device
	Control Control
	Clock   Clock
	Rand    io.Reader // draws receiver indices
	// OnLoopStart, if set, is called first by each goroutine of a lane, with its name: "tx0",
	// "rx0". The goroutine calls yield, if it is not nil, whenever its load changes. true means
	// single datagrams, for which applications need more CPU time than the lane. false means
	// trains.
	OnLoopStart func(loop string) (yield func(bool))
	// Pool has the workers that seal and open trains for busy lanes; nil for none. It must outlive the lanes.
	Pool *workpool.Pool
	// GiveBack gives memory back to the operating system some seconds after a burst, by two garbage collections of the whole process.
	GiveBack bool
}

// streamBytes bounds the memory of the replay windows of all streams of all peers: enough for 400
// sessions.
const streamBytes = 128 << 20

// Engine connects one TUN device with the underlay port that is attached.
type Engine struct {
	cfg      Config
	shared   *lane.Shared
	lanes    []*loops
	Sessions *session.Table[*Session]
	Routes   *peer.AllowedIPs[*Peer]
	// SlowDrops counts the drops outside the lanes, in handshakes and staging.
	SlowDrops drop.Counters
	slow      *send.Slow
	secondary *receive.Receiver // from the port's secondary ports; nil before the first port
	observer  *lane.Observer
	rxBudget  receive.Budget
	streams   *session.StreamBudget
	before    atomic.Pointer[Stats] // counters of a previous engine; nil for none

	mu     sync.Mutex // serialises Attach and Detach
	port   underlay.Port
	rx, tx sync.WaitGroup
}

// loops are the two directions of a lane. They outlive ports and stops: new ones would leave their buffers to the garbage collector.
type loops struct {
	lane *lane.Lane
	tx   *send.Transmitter // nil before the first Start
	rx   *receive.Receiver // nil before the first port
}

// secondarySlots is the number of datagrams per receive call on the secondary ports. They receive nothing unless a peer
// answers to them, which happens when spread is forced towards a peer that does not gather.
const secondarySlots = 4

// injector writes packets from secondary ports to a queue that its lane also uses.
type injector struct{ tun.Queue }

// Write implements tun.Queue.
func (i injector) Write(parts [][]byte) error { return i.Inject(parts) }

// New returns an engine with one lane per queue of the device. Start makes it run.
func New(cfg Config) *Engine {
	queues := cfg.Device.Queues()
	s := lane.NewShared(cfg.Clock, cfg.Control, cfg.Rand, len(queues), cfg.Device.Features().USO)
	e := &Engine{cfg: cfg, shared: s, Sessions: s.Sessions, Routes: &s.Routes, streams: session.NewStreamBudget(streamBytes)}
	if cfg.GiveBack {
		s.Memory.Free = lane.GiveBack
	}
	e.rxBudget.Init(len(queues) + 1) // and the slow path
	for i, q := range queues {
		e.lanes = append(e.lanes, &loops{lane: lane.New(s, i, q, cfg.Pool)})
	}
	e.slow = send.NewSlow(lane.New(s, len(queues), injector{queues[0]}, nil), &e.SlowDrops)
	e.observer = lane.NewObserver(cfg.Clock, e.allLanes()...)
	return e
}

// SetMTU sets the TUN's MTU. Padding does not exceed it.
func (e *Engine) SetMTU(mtu int) { e.shared.MTU.Store(int64(mtu)) }

// NewPeer returns a peer of e with its slow path. Lanes find it only once Routes and Sessions contain it.
func (e *Engine) NewPeer(slow SlowPath) *Peer { return e.shared.NewPeer(slow) }

// AnnounceStreams lets the peer send sprayed flows in a session (session.Keypair.AnnounceStreams). It is false if others have all memory.
func (e *Engine) AnnounceStreams(keys *session.Keypair) bool { return keys.AnnounceStreams(e.streams) }

// GiveBack does what Config.GiveBack is for some seconds from now: others than the lanes have left garbage.
func (e *Engine) GiveBack() { e.shared.Memory.Note() }

// Transmit sends one train (see tun.Queue) to p under keys, outside the lanes and without a route lookup. Trains of one
// caller leave in order. Packets that cannot be sent are counted.
func (e *Engine) Transmit(p *Peer, keys *session.Keypair, train []byte) {
	e.slow.Transmit(p, keys, train)
}

// SendKeepalive sends p an empty message under keys.
func (e *Engine) SendKeepalive(p *Peer, keys *session.Keypair) {
	e.SendControl(p, keys, ControlMessage{})
}

// SendControl sends messages to p under keys, with one system call for each source. The messages
// of one source leave in order. The timers expect no answer to them. A message that cannot be
// sent is counted as a drop, unless its Size exceeds the MTU of the network device.
func (e *Engine) SendControl(p *Peer, keys *session.Keypair, messages ...ControlMessage) {
	e.slow.SendControl(p, keys, messages)
}

// DropForPeer counts n messages or packets to p that were dropped outside the lanes.
func (e *Engine) DropForPeer(p *Peer, why drop.Reason, n int) {
	e.SlowDrops.Add(why, n)
	p.Slow.TxDrops.Add(uint64(n))
}

// Progress is lane.Lane.Progress of a lane.
func (e *Engine) Progress(i int) (tx, rx, queue Progress) { return e.lanes[i].lane.Progress() }

// Flows returns the flows with most traffic in both directions of each lane, and when counting began. It begins with the first call, and
// ends some seconds after the last one. Packets that pass while a table is copied, for some microseconds, are not counted.
func (e *Engine) Flows() (flows []FlowStats, since int64) { return e.observer.Flows() }

// Stats returns a snapshot; it is consistent per counter, not across counters.
func (e *Engine) Stats() Stats {
	s := Stats{Drops: lane.DropMap(&e.SlowDrops), SprayRefused: e.streams.Refused()}
	for _, l := range e.lanes {
		s.Lanes = append(s.Lanes, l.lane.Snapshot())
	}
	s.Slow = e.slow.Lane.Snapshot()
	if before := e.before.Load(); before != nil {
		s.Add(before)
	}
	return s
}

// Resume adds the counters of a previous engine to all results of Stats: a counter that decreases breaks graphs. It ignores lanes that
// this engine does not have.
func (e *Engine) Resume(before *Stats) { e.before.Store(before) }

// allLanes returns all lanes, and the slow path's.
func (e *Engine) allLanes() (all []*lane.Lane) {
	for _, l := range e.lanes {
		all = append(all, l.lane)
	}
	return append(all, e.slow.Lane)
}

// Lanes returns the number of lanes.
func (e *Engine) Lanes() int { return len(e.lanes) }

// Start starts to read the TUN. Call it again only after Stop.
func (e *Engine) Start() {
	for _, l := range e.lanes {
		e.tx.Go(func() {
			yield := e.loopStarted("tx", l.lane)
			if l.tx == nil {
				l.tx = send.New(l.lane, send.Slots)
			}
			l.tx.Run(yield)
		})
	}
}

// Stop ends what Start has begun. Packets of the host then wait in the TUN until the next Start. If the TUN device does not stop, the lanes read
// on. If it does not resume, as after it was closed, they have ended for good.
func (e *Engine) Stop() error {
	if err := e.cfg.Device.StopReading(); err != nil {
		return fmt.Errorf("stopping the lanes: %w", err)
	}
	e.tx.Wait()
	if err := e.cfg.Device.ResumeReading(); err != nil {
		return fmt.Errorf("stopping the lanes: %w", err)
	}
	return nil
}

// SendWaiting sends what waits in the TUN after Stop, as far as the port permits: send.MaxWaiting trains of each queue or little more.
func (e *Engine) SendWaiting() {
	var lanes sync.WaitGroup
	for _, l := range e.lanes {
		lanes.Go(l.tx.SendWaiting)
	}
	lanes.Wait()
}

// loopStarted calls Config.OnLoopStart for one goroutine of a lane.
func (e *Engine) loopStarted(direction string, l *lane.Lane) (yield func(bool)) {
	if e.cfg.OnLoopStart == nil {
		return nil
	}
	return e.cfg.OnLoopStart(direction + strconv.Itoa(l.Index))
}

// Wait blocks until all transmit goroutines have ended. They end when the TUN device is closed or deleted, or reading it is stopped.
func (e *Engine) Wait() { e.tx.Wait() }

// Attach starts to send to port and to receive from it. The port must have as many lanes as the engine. On success the
// engine owns the port, and Detach closes it.
func (e *Engine) Attach(port underlay.Port) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if port.Lanes() != len(e.lanes) {
		return fmt.Errorf("attaching port: it has %d lanes, want %d", port.Lanes(), len(e.lanes))
	}
	if e.port != nil {
		return errors.New("attaching port: another port is attached")
	}
	e.port = port
	e.slow.Attach(port)
	for i, l := range e.lanes {
		conn := port.Lane(i)
		l.lane.Conn.Store(&conn)
		e.rx.Go(func() {
			yield := e.loopStarted("rx", l.lane)
			if l.rx == nil {
				l.rx = receive.New(l.lane, receive.Slots, &e.rxBudget)
			}
			l.rx.Run(conn, conn.TryRecv, yield)
		})
	}
	if e.secondary == nil {
		e.secondary = receive.New(e.slow.Lane, secondarySlots, &e.rxBudget)
	}
	e.rx.Go(func() { e.secondary.Run(port.SecondaryPorts(), nil, nil) })
	e.shared.Memory.Note() // sockets also have buffers
	return nil
}

// Detach closes the attached port and waits until no lane receives from it. Without a port, packets from the TUN are
// dropped (drop.TXDown).
func (e *Engine) Detach() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.port == nil {
		return nil
	}
	for _, l := range e.lanes {
		l.lane.Conn.Store(nil)
	}
	e.slow.Attach(nil)
	err := e.port.Close()
	e.rx.Wait()
	e.port = nil
	e.shared.Memory.Note()
	if err != nil {
		return fmt.Errorf("closing the UDP port: %w", err)
	}
	return nil
}
