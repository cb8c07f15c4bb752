// SPDX-License-Identifier: Apache-2.0

package model

import "math"

// flow is the traffic from one application to another, within a window that grows until the round trip takes too long, as that
// of BBR or DCTCP does, or something is lost. Lost data is not retransmitted: the model is of capacity, not of TCP.
type flow struct {
	sim    *sim
	number int
	hash   uint32
	left   int // bytes that are still to be sent; negative: without end

	app, reader *thread
	toRead      fifo[*parcel]
	onTheWay    int     // bytes that are not acknowledged
	unread      int     // bytes that the receiving application does not have, whether acknowledged or not
	window      float64 // bytes
	threshold   float64 // below it the window doubles
	yielded     int64   // when it last shrank
	sent, read  uint64  // trains; of those read, the number of the last
	began       int64
	open        bool // not held back by a window, has no applications
}

const (
	packetLen     = 1380 // of a window's
	initialWindow = 10 * packetLen
	leastWindow   = 2 * packetLen
	// increase is what a window grows by in a round trip, once it has been too large.
	increase = 4 * packetLen
	// shrink is the least that is left of a window at a time.
	shrink = 0.7
	// delayTarget is the round trip beyond which a window shrinks, in ns.
	delayTarget = int64(1_000_000)
	// lossDelay is how long the sender takes to learn of a loss, in ns.
	lossDelay = int64(200_000)
)

func (s *sim) newFlow(bytes int) *flow {
	f := &flow{
		sim: s, number: s.flowsMade, hash: s.rng.Uint32(), left: bytes, window: initialWindow,
		threshold: math.Inf(1), began: s.now,
	}
	s.flowsMade++
	if s.cfg.Closed {
		f.window = float64(s.cfg.Window)
	}
	f.app = newThread(s.a.machine, f.write)
	f.reader = newThread(s.b.machine, f.next)
	return f
}

// write is the source of the sending application's thread.
func (f *flow) write() (job, bool) {
	t := f.sim.trainOf(f.left, int(f.window))
	if f.left == 0 || f.sim.stopped || !f.admits(t.Bytes) {
		return job{}, false
	}
	if f.left > 0 {
		f.left -= t.Bytes
	}
	p := f.parcel(t)
	return job{UseApp, f.sim.a.work(p, AppSend), func() { f.sim.a.enter(p) }}, true
}

// admits tells whether so many bytes more may be on the way: by what the network and what the receiver takes.
func (f *flow) admits(bytes int) bool {
	if f.unread == 0 && f.onTheWay == 0 {
		return true
	}
	return f.onTheWay+bytes <= int(f.window) && f.unread+bytes <= f.sim.cfg.Window
}

// parcel makes the flow's next train.
func (f *flow) parcel(t Train) *parcel {
	f.sent++
	f.onTheWay += t.Bytes
	f.unread += t.Bytes
	f.sim.offered += int64(t.Bytes)
	p := &parcel{flow: f, train: t, number: f.sent, entered: f.sim.now}
	f.sim.move(p, atApp)
	return p
}

// trainOf is the next train of a flow that has so many bytes left, negative for any number, and such a window.
func (s *sim) trainOf(left, window int) Train {
	full := s.cfg.Train
	bytes := min(full.Bytes, window)
	if left >= 0 {
		bytes = min(bytes, left)
	}
	packets := (bytes*full.Packets + full.Bytes - 1) / full.Bytes
	return Train{Packets: max(packets, 1), Bytes: bytes}
}

// next is the source of the receiving application's thread.
func (f *flow) next() (job, bool) {
	if f.toRead.len() == 0 {
		return job{}, false
	}
	p := f.toRead.pop()
	return job{UseApp, f.sim.b.work(p, AppReceive), func() { f.sim.delivered(p) }}, true
}

// acknowledged says that what an acknowledgement is for has come to the other end.
func (f *flow) acknowledged(ack *parcel) {
	f.onTheWay -= ack.acks
	delay := f.sim.now - ack.sent
	switch {
	case f.sim.cfg.Closed:
	case delay > delayTarget:
		f.yield(max(float64(delayTarget)/float64(delay), shrink))
	case f.window < f.threshold:
		f.window += float64(ack.acks)
	default:
		f.window += float64(ack.acks) * increase / f.window
	}
	f.window = min(f.window, float64(f.sim.cfg.Window))
	f.app.poke()
}

// lost says that a train will not come.
func (f *flow) lost(p *parcel) {
	f.onTheWay -= p.train.Bytes
	f.unread -= p.train.Bytes
	f.yield(shrink)
	f.app.poke()
}

// yield leaves so much of the window, once a round trip.
func (f *flow) yield(share float64) {
	if f.sim.now-f.yielded < delayTarget {
		return
	}
	f.yielded = f.sim.now
	f.window = max(f.window*share, leastWindow)
	f.threshold = f.window
}

// mouse begins a short flow, and makes the next one begin.
func (s *sim) mouse() {
	if s.stopped {
		return
	}
	const shape, low, high = 1.2, 4e3, 4e6
	u := s.rng.Float64()
	ratio := math.Pow(low/high, shape)
	size := low / math.Pow(1-u*(1-ratio), 1/shape)
	s.newFlow(int(size)).app.poke()
	mean := shape / (shape - 1) * low * (1 - math.Pow(low/high, shape-1)) / (1 - ratio)
	s.in(int64(s.rng.ExpFloat64()*mean/s.cfg.Mice*1e9), s.mouse)
}

// poisson sends a train of a flow that does not wait, and makes the next one follow.
func (s *sim) poisson(f *flow) {
	if s.stopped {
		return
	}
	s.a.enter(f.parcel(s.cfg.Train))
	s.in(int64(s.rng.ExpFloat64()/s.cfg.Poisson*1e9), func() { s.poisson(f) })
}
