// SPDX-License-Identifier: Apache-2.0

// Package engine is the fast path: the loops that carry trains between the queues of one TUN and the lanes of one
// underlay port. It knows sessions and routes, and nothing of handshakes, timers or configuration: whatever is not a
// data message of a live session goes to the Control and Owner interfaces, which the device implements.
//
// Concurrency: each lane has one transmit and one receive goroutine. They share no lock; sessions, routes and peers
// are read through atomic pointers. In steady state neither allocates.
package engine

import (
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/crew"
	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/peer"
	"github.com/ropewalk/ropewalk/pkg/session"
	"github.com/ropewalk/ropewalk/pkg/tun"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// Clock returns monotonic nanoseconds since an arbitrary start. Lanes read it once per batch.
type Clock func() int64

// NewClock returns the clock of a process: nanoseconds since now, never 0, which stands for "never" elsewhere.
func NewClock() Clock {
	start := time.Now()
	return func() int64 { return int64(time.Since(start)) + 1 }
}

// BootClock returns the clock of the machine, which goes on while it is suspended (CLOCK_BOOTTIME), as the in-kernel
// WireGuard's does: a session must not outlive its time because the lid was closed.
func BootClock() Clock {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return NewClock()
	}
	return func() int64 {
		var ts unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // it worked before, and has no other way to fail
		return ts.Nano()
	}
}

// Control takes what lanes receive and cannot handle. It must not block.
type Control interface {
	// Handshake takes a handshake or cookie message. msg is valid only during the call.
	Handshake(msg []byte, from underlay.Endpoint) drop.Reason
}

// Config is what an Engine is made of; all fields but Begin and Crew are required.
type Config struct {
	Device  tun.Device
	Control Control
	Clock   Clock
	Rand    io.Reader // draws receiver indices
	// OnLoopStart, when set, is called by each goroutine of the lanes before it does anything else, with what it is: "tx0", "rx0".
	OnLoopStart func(loop string)
	// Pool seals and opens trains for lanes that have several at once; nil for none. It must outlive the lanes.
	Pool *crew.Crew
}

// Engine joins one TUN device with the underlay port that is attached at the moment.
type Engine struct {
	cfg      Config
	lanes    []*lane
	Sessions *session.Table[*Session]
	Routes   peer.AllowedIPs[*Peer]
	// SlowDrops counts drops that happen away from the lanes, in handshakes and staging.
	SlowDrops drop.Counters
	slow      slowLane
	before    *Stats // of another engine; nil for none

	mu       sync.Mutex // serialises Attach and Detach
	port     underlay.Port
	rx, tx   sync.WaitGroup
	padLimit padLimit
}

// New returns an engine with one lane per queue of the device. Start makes it run.
func New(cfg Config) *Engine {
	e := &Engine{cfg: cfg, Sessions: session.NewTable[*Session](cfg.Rand)}
	for i, q := range cfg.Device.Queues() {
		e.lanes = append(e.lanes, newLane(e, i, q, cfg.Pool))
	}
	e.slow.lane = newLane(e, len(e.lanes), injector{e.lanes[0].queue}, nil)
	e.SetMTU(DefaultMTU)
	return e
}

// DefaultMTU is the TUN's MTU until the device says otherwise: 1500 less 80 for the largest encapsulation (IPv6).
const DefaultMTU = 1420

// SetMTU tells the engine the TUN's MTU, beyond which messages are not padded.
func (e *Engine) SetMTU(mtu int) { e.padLimit.Store(int64(mtu)) }

// Lanes returns the number of lanes.
func (e *Engine) Lanes() int { return len(e.lanes) }

// Start begins to read the TUN. It must be called once.
func (e *Engine) Start() {
	for _, l := range e.lanes {
		e.tx.Go(func() {
			e.loopStarted("tx", l)
			l.transmit()
		})
	}
}

// loopStarted calls Config.OnLoopStart for one loop of a lane.
func (e *Engine) loopStarted(direction string, l *lane) {
	if e.cfg.OnLoopStart != nil {
		e.cfg.OnLoopStart(direction + strconv.Itoa(l.index))
	}
}

// Wait blocks until all transmit loops have ended, which they do when the TUN device is closed or deleted.
func (e *Engine) Wait() { e.tx.Wait() }

// Attach begins to use port, which must have as many lanes as the engine, and to receive from it. On success the
// engine owns the port: Detach closes it.
func (e *Engine) Attach(port underlay.Port) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if port.Lanes() != len(e.lanes) {
		return fmt.Errorf("attaching a port of %d lanes to an engine of %d", port.Lanes(), len(e.lanes))
	}
	if e.port != nil {
		return fmt.Errorf("attaching a port: another one is attached")
	}
	e.port = port
	e.slow.attach(port)
	for i, l := range e.lanes {
		conn := port.Lane(i)
		l.conn.Store(&conn)
		e.rx.Go(func() {
			e.loopStarted("rx", l)
			l.receive(conn)
		})
	}
	e.rx.Go(func() { newReceiver(e.slow.lane, secondarySlots).run(port.Strays(), nil) })
	return nil
}

// Detach stops using the attached port, closes it, and waits until no lane receives from it. Without a port, what the
// TUN has to send is dropped (drop.TXDown).
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
	if err != nil {
		return fmt.Errorf("closing the port: %w", err)
	}
	return nil
}
