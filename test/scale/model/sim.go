// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// parcel is a train on its way, or the acknowledgement of one.
type parcel struct {
	flow    *flow
	train   Train
	number  uint64 // in its flow
	acks    int    // bytes that it acknowledges; 0 is data
	sent    int64  // when those entered
	entered int64
	port    int
	at      place
}

// place is where a parcel is.
type place int

const (
	nowhere place = iota
	atApp
	atTUN
	atWire
	atNIC
	atSocket
	atReader
	places
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

// String names it.
func (d Drop) String() string { return [...]string{"tun", "link", "nic", "socket"}[d] }

// sim is a run.
type sim struct {
	calendar
	cfg     Config
	rng     *rand.Rand
	a, b    *end
	stopped bool // no more data is made

	flowsMade int
	busyFlows []*flow // the elephants
	offered   int64   // bytes of data, since the beginning
	arrivals  int64
	lost      [drops]int64
	at        [places]int64
	reordered int

	figures figures
}

// figures begin anew when the warm-up is over.
type figures struct {
	since    int64
	bytes    int64
	latency  []int64
	finished []int64 // how long short flows took, ns
	lost     int64
}

// start is the calendar's beginning: pkg/protocol/spread takes 0 for never.
const start = int64(time.Second)

// Run simulates c. The same Config gives the same Result.
func Run(c Config) (*Result, error) {
	s, err := newSim(c)
	if err != nil {
		return nil, err
	}
	s.begin()
	s.run(start + int64(c.Warmup))
	s.reset()
	s.run(start + int64(c.Warmup+c.Duration))
	return s.result(), nil
}

func newSim(c Config) (*sim, error) {
	if err := c.complete(); err != nil {
		return nil, fmt.Errorf("preparing a simulation: %w", err)
	}
	s := &sim{cfg: c, rng: rand.New(rand.NewPCG(c.Seed, 1))}
	s.now = start
	m := newMachine(&s.calendar, c.Cores)
	other := m
	if !c.OneMachine {
		other = newMachine(&s.calendar, c.Cores)
	}
	s.a, s.b = newEnd(s, m), newEnd(s, other)
	var err error
	if s.a.out, err = newWay(&s.cfg, s.rng, s.a, s.b, 1); err != nil {
		return nil, err
	}
	if s.b.out, err = newWay(&s.cfg, s.rng, s.b, s.a, 2); err != nil {
		return nil, err
	}
	return s, nil
}

// begin starts the flows, not quite at once.
func (s *sim) begin() {
	const stagger = int64(2 * time.Millisecond)
	for range s.cfg.Elephants {
		f := s.newFlow(-1)
		s.busyFlows = append(s.busyFlows, f)
		s.in(s.rng.Int64N(stagger), f.app.poke)
	}
	if s.cfg.Mice > 0 {
		s.in(0, s.mouse)
	}
	if s.cfg.Poisson > 0 {
		f := s.newFlow(0)
		f.open = true
		s.in(0, func() { s.poisson(f) })
	}
}

// reset begins the figures.
func (s *sim) reset() {
	s.figures = figures{since: s.now}
	for _, e := range []*end{s.a, s.b} {
		e.machine.since = s.now
		for _, c := range e.machine.cores {
			clear(c.used[:])
		}
		for _, l := range slices.Concat(e.tx, e.rx) {
			l.thread.ran = 0
		}
		for _, q := range e.queues {
			q.busy = 0
		}
		e.nonce.held, e.window.held, e.kernel.held = 0, 0, 0
	}
	for _, f := range s.busyFlows {
		f.app.ran, f.reader.ran = 0, 0
	}
}

// move notes where a parcel of data is now.
func (s *sim) move(p *parcel, to place) {
	if p.acks > 0 {
		return
	}
	s.at[p.at] -= int64(p.train.Bytes)
	p.at = to
	s.at[to] += int64(p.train.Bytes)
}

// drop loses a parcel. Of lost data the sender learns a little later. A lost acknowledgement is made good by the next.
func (s *sim) drop(p *parcel, d Drop) {
	if p.acks > 0 {
		s.in(lossDelay, func() { p.flow.acknowledged(p) })
		return
	}
	s.move(p, nowhere)
	s.lost[d] += int64(p.train.Bytes)
	s.figures.lost += int64(p.train.Bytes)
	s.in(lossDelay, func() { p.flow.lost(p) })
}

// arrived is what a receiving lane has written to its TUN.
func (s *sim) arrived(p *parcel) {
	if p.acks > 0 {
		p.flow.acknowledged(p)
		return
	}
	s.move(p, atReader)
	if p.flow.open {
		s.delivered(p)
		p.flow.onTheWay -= p.train.Bytes
		return
	}
	p.flow.toRead.push(p)
	p.flow.reader.poke()
	s.b.enter(&parcel{flow: p.flow, train: s.cfg.Ack, acks: p.train.Bytes, sent: p.entered})
}

// delivered is data that its application has.
func (s *sim) delivered(p *parcel) {
	s.move(p, nowhere)
	f, n := p.flow, int64(p.train.Bytes)
	if p.number <= f.read {
		s.reordered++
	}
	f.read = p.number
	if !f.open {
		f.unread -= p.train.Bytes
		s.in(s.cfg.Delay, f.app.poke)
	}
	s.arrivals += n
	s.figures.bytes += n
	s.figures.latency = append(s.figures.latency, s.now-p.entered)
	if f.left == 0 && p.number == f.sent && !f.open {
		s.figures.finished = append(s.figures.finished, s.now-f.began)
	}
}
