// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// Control takes the messages of no session from the lanes. It must not block.
type Control interface {
	// Handshake takes a handshake or cookie message. msg is valid only during the call.
	Handshake(msg []byte, from underlay.Endpoint) drop.Reason
}

// Config configures an Engine. All fields except OnLoopStart, Pool and GiveBack are required.
type Config struct {
	Device  tun.Device
	Control Control
	Clock   Clock
	Rand    io.Reader // draws receiver indices
	// OnLoopStart, if set, is called first by each goroutine of a lane, with its name: "tx0", "rx0". The goroutine calls what it
	// returns, if that is not nil, whenever its load changes: with true if it consists of single datagrams, for which applications
	// need more CPU time than the lane, and with false if it consists of trains again.
	OnLoopStart func(loop string) (yield func(bool))
	// Pool has the workers that seal and open trains for busy lanes; nil for none. It must outlive the lanes.
	Pool *workpool.Pool
	// GiveBack gives memory back to the operating system some seconds after a burst, by two garbage collections of the whole process.
	GiveBack bool
}

// Engine connects one TUN device with the underlay port that is attached.
type Engine struct {
	cfg      Config
	lanes    []*lane
	Sessions *session.Table[*Session]
	Routes   peer.AllowedIPs[*Peer]
	// SlowDrops counts the drops outside the lanes, in handshakes and staging.
	SlowDrops drop.Counters
	slow      slowLane
	observer  flowObserver
	rxBudget  rxBudget
	streams   *session.StreamBudget
	before    atomic.Pointer[Stats] // counters of a previous engine; nil for none
	mtu       atomic.Int64          // the TUN's; lanes read it once per batch
	memory    trimmer
	peers     atomic.Uint32 // number of NewPeer's calls

	mu     sync.Mutex // serialises Attach and Detach
	port   underlay.Port
	rx, tx sync.WaitGroup
}

// New returns an engine with one lane per queue of the device. Start makes it run.
func New(cfg Config) *Engine {
	e := &Engine{cfg: cfg, Sessions: session.NewTable[*Session](cfg.Rand), streams: session.NewStreamBudget(streamBytes)}
	if cfg.GiveBack {
		e.memory.free = giveBack
	}
	queues := cfg.Device.Queues()
	e.rxBudget.init(len(queues) + 1) // and the slow lane
	for i, q := range queues {
		e.lanes = append(e.lanes, newLane(e, i, q, cfg.Pool))
	}
	e.slow.lane = newLane(e, len(e.lanes), injector{e.lanes[0].queue}, nil)
	e.SetMTU(DefaultMTU)
	return e
}

// DefaultMTU is the TUN's MTU until SetMTU is called: 1500 less 80 for the largest encapsulation (IPv6).
const DefaultMTU = 1420

// SetMTU sets the TUN's MTU. Padding does not exceed it.
func (e *Engine) SetMTU(mtu int) { e.mtu.Store(int64(mtu)) }

// Lanes returns the number of lanes.
func (e *Engine) Lanes() int { return len(e.lanes) }

// Start starts to read the TUN. Call it again only after Stop.
func (e *Engine) Start() {
	for _, l := range e.lanes {
		e.tx.Go(func() {
			l.transmit(e.loopStarted("tx", l))
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

// SendWaiting sends what waits in the TUN after Stop, as far as the port permits: maxWaiting trains of each queue or little more.
func (e *Engine) SendWaiting() {
	var lanes sync.WaitGroup
	for _, l := range e.lanes {
		lanes.Go(l.tx.sendWaiting)
	}
	lanes.Wait()
}

// loopStarted calls Config.OnLoopStart for one goroutine of a lane.
func (e *Engine) loopStarted(direction string, l *lane) (yield func(bool)) {
	if e.cfg.OnLoopStart == nil {
		return nil
	}
	return e.cfg.OnLoopStart(direction + strconv.Itoa(l.index))
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
	e.slow.attach(port)
	for i, l := range e.lanes {
		conn := port.Lane(i)
		l.conn.Store(&conn)
		e.rx.Go(func() {
			l.receive(conn, e.loopStarted("rx", l))
		})
	}
	e.rx.Go(func() { e.slow.lane.ownReceiver(secondarySlots).run(port.SecondaryPorts(), nil) })
	e.memory.note() // sockets have buffers, too
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
		l.conn.Store(nil)
	}
	e.slow.attach(nil)
	err := e.port.Close()
	e.rx.Wait()
	e.port = nil
	e.memory.note()
	if err != nil {
		return fmt.Errorf("closing the UDP port: %w", err)
	}
	return nil
}
