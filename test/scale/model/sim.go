// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// element is a train, or the acknowledgement of one, on its way through the tunnel.
type element struct {
	flow        *flow
	train       Train
	number      uint64 // in its flow, from 1
	ackedBytes  int    // bytes that it acknowledges; 0 for data
	dataEntered int64  // of an acknowledgement: when the acknowledged data entered the sender's TUN queue
	entered     int64  // when it entered the sender's TUN queue
	port        int
	location    location
	writer      *writer // that writes it; nil: the receive lane
}

// location is where an element is.
type location int

const (
	nowhere location = iota
	atApp
	atTUN
	atWire
	atNIC
	atSocket
	atWriter
	atReader
	locationCount
)

// Drop is where a train was lost.
type Drop int

// The places where trains are lost.
const (
	DropTUN    Drop = iota // the TUN's queue was full
	DropLink               // too much waited for the wire
	DropNIC                // the NIC's ring was full
	DropSocket             // the lane's receive buffer was full
	drops
)

// String returns the name for reports.
func (d Drop) String() string { return [...]string{"tun", "link", "nic", "socket"}[d] }

// sim is the state of a run.
type sim struct {
	eventQueue
	cfg     Config
	rng     *rand.Rand
	a, b    *endpoint
	stopped bool // no more data is sent

	flowsMade      int
	elephants      []*flow
	offered        int64 // bytes of data, since the beginning
	deliveredBytes int64
	lost           [drops]int64
	at             [locationCount]int64
	reordered      int

	figures figures
}

// figures are measured after the warm-up.
type figures struct {
	since    int64
	bytes    int64
	latency  []int64
	finished []int64 // completion times of short flows, in ns
	lost     int64
}

// start is the time at which a simulation begins. It is not 0, since pkg/protocol/spread uses 0 for never.
const start = int64(time.Second)

// Run simulates c. The same Config gives the same Result.
func Run(c Config) (*Result, error) {
	s, err := newSim(c)
	if err != nil {
		return nil, err
	}
	s.begin()
	s.runUntil(start + int64(c.Warmup))
	s.startFigures()
	s.runUntil(start + int64(c.Warmup+c.Duration))
	return s.result(), nil
}

func newSim(c Config) (*sim, error) {
	if err := c.complete(); err != nil {
		return nil, fmt.Errorf("preparing a simulation: %w", err)
	}
	s := &sim{cfg: c, rng: rand.New(rand.NewPCG(c.Seed, 1))}
	s.now = start
	m := newMachine(&s.eventQueue, c.Cores)
	other := m
	if !c.OneMachine {
		other = newMachine(&s.eventQueue, c.Receiver.Cores)
	}
	s.a, s.b = newEnd(s, m, c.sender()), newEnd(s, other, c.Receiver)
	var err error
	if s.a.out, err = newPath(&s.cfg, s.rng, s.a, s.b, 1); err != nil {
		return nil, err
	}
	if s.b.out, err = newPath(&s.cfg, s.rng, s.b, s.a, 2); err != nil {
		return nil, err
	}
	return s, nil
}

// begin starts the flows, at random times within stagger.
func (s *sim) begin() {
	const stagger = int64(2 * time.Millisecond)
	for range s.cfg.Elephants {
		f := s.newFlow(-1)
		s.elephants = append(s.elephants, f)
		s.after(s.rng.Int64N(stagger), f.app.wake)
	}
	if s.cfg.Mice > 0 {
		s.after(0, s.startMouse)
	}
	if s.cfg.Poisson > 0 {
		f := s.newFlow(0)
		f.openLoop = true
		s.after(0, func() { s.sendPoisson(f) })
	}
}

// startFigures starts the measurement.
func (s *sim) startFigures() {
	s.figures = figures{since: s.now}
	for _, e := range []*endpoint{s.a, s.b} {
		e.machine.since = s.now
		for _, c := range e.machine.cores {
			clear(c.used[:])
		}
		for _, l := range slices.Concat(e.tx, e.rx) {
			l.thread.ran = 0
		}
		for _, w := range e.writers {
			w.thread.ran = 0
		}
		for _, q := range e.queues {
			q.busy = 0
		}
		e.nonce.held, e.window.held, e.kernel.held = 0, 0, 0
	}
	for _, f := range s.elephants {
		f.app.ran, f.reader.ran = 0, 0
	}
}

// move records the location of a data element.
func (s *sim) move(p *element, to location) {
	if p.ackedBytes > 0 {
		return
	}
	s.at[p.location] -= int64(p.train.Bytes)
	p.location = to
	s.at[to] += int64(p.train.Bytes)
}

// drop drops an element. The sender detects the loss of data after lossDelay. A lost acknowledgement takes effect
// after lossDelay, as if the next one took its place.
func (s *sim) drop(p *element, d Drop) {
	if p.ackedBytes > 0 {
		s.after(lossDelay, func() { p.flow.onAck(p) })
		return
	}
	s.move(p, nowhere)
	s.lost[d] += int64(p.train.Bytes)
	s.figures.lost += int64(p.train.Bytes)
	s.after(lossDelay, func() { p.flow.onLoss(p) })
}

// fromLane handles an element that a receive lane has written to its TUN.
func (s *sim) fromLane(p *element) {
	if p.ackedBytes > 0 {
		p.flow.onAck(p)
		return
	}
	s.move(p, atReader)
	if p.flow.openLoop {
		s.delivered(p)
		p.flow.inFlight -= p.train.Bytes
		return
	}
	p.flow.readQueue.push(p)
	p.flow.reader.wake()
	s.b.enqueueTUN(&element{flow: p.flow, train: s.cfg.Ack, ackedBytes: p.train.Bytes, dataEntered: p.entered})
}

// delivered handles data that its application has read.
func (s *sim) delivered(p *element) {
	s.move(p, nowhere)
	f, n := p.flow, int64(p.train.Bytes)
	if p.number <= f.lastRead {
		s.reordered++
	}
	f.lastRead = p.number
	if !f.openLoop {
		f.unread -= p.train.Bytes
		s.after(s.cfg.Delay, f.app.wake)
	}
	s.deliveredBytes += n
	s.figures.bytes += n
	s.figures.latency = append(s.figures.latency, s.now-p.entered)
	if f.remaining == 0 && p.number == f.sent && !f.openLoop {
		s.figures.finished = append(s.figures.finished, s.now-f.began)
	}
}
