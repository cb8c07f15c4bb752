// SPDX-License-Identifier: Apache-2.0

package model

import "math"

// flow is the traffic between two applications. Its window grows until the round-trip time exceeds a target, as with BBR or DCTCP,
// or until data is lost. Lost data is not retransmitted, since the model predicts capacity and not TCP's behaviour.
type flow struct {
	sim       *sim
	number    int
	hash      uint32
	remaining int // bytes still to send; negative: unlimited

	app, reader    *thread
	readQueue      fifo[*element]
	inFlight       int     // bytes not acknowledged
	unread         int     // bytes that the receiving application has not read
	window         float64 // bytes
	threshold      float64 // below it the window doubles per round trip (slow start)
	lastReduction  int64   // time of the last reduction of the window
	sent, lastRead uint64  // number of trains sent; number of the last train read
	began          int64
	openLoop       bool // no window and no applications
}

const (
	packetLen     = 1380 // bytes of payload per packet, for the window
	initialWindow = 10 * packetLen
	minWindow     = 2 * packetLen
	// increase is the additive increase of the window per round trip, after slow start.
	increase = 4 * packetLen
	// minReduction is the smallest factor by which the window is multiplied.
	minReduction = 0.7
	// delayTarget is the round-trip time above which the window is reduced, in ns.
	delayTarget = int64(1_000_000)
	// lossDelay is the time until the sender detects a loss, in ns.
	lossDelay = int64(200_000)
)

func (s *sim) newFlow(bytes int) *flow {
	f := &flow{
		sim: s, number: s.flowsMade, hash: s.rng.Uint32(), remaining: bytes, window: initialWindow,
		threshold: math.Inf(1), began: s.now,
	}
	s.flowsMade++
	if s.cfg.ClosedLoop {
		f.window = float64(s.cfg.Window)
	}
	f.app = newThread(s.a.machine, f.write)
	f.reader = newThread(s.b.machine, f.read)
	return f
}

// write returns the next job of the sending application's thread.
func (f *flow) write() (job, bool) {
	t := f.sim.trainOf(f.remaining, int(f.window))
	if f.remaining == 0 || f.sim.stopped || !f.admits(t.Bytes) {
		return job{}, false
	}
	if f.remaining > 0 {
		f.remaining -= t.Bytes
	}
	p := f.nextElement(t)
	return job{UseApp, f.sim.a.stageStep(p, AppSend), func() { f.sim.a.enqueueTUN(p) }}, true
}

// admits reports whether the congestion window and the receiver's window allow bytes more.
func (f *flow) admits(bytes int) bool {
	if f.unread == 0 && f.inFlight == 0 {
		return true
	}
	return f.inFlight+bytes <= int(f.window) && f.unread+bytes <= f.sim.cfg.Window
}

// nextElement creates the flow's next train.
func (f *flow) nextElement(t Train) *element {
	f.sent++
	f.inFlight += t.Bytes
	f.unread += t.Bytes
	f.sim.offered += int64(t.Bytes)
	p := &element{flow: f, train: t, number: f.sent, entered: f.sim.now}
	f.sim.move(p, atApp)
	return p
}

// trainOf returns the next train of a flow with left bytes to send, where negative means unlimited, and with this window.
func (s *sim) trainOf(left, window int) Train {
	full := s.cfg.Train
	bytes := min(full.Bytes, window)
	if left >= 0 {
		bytes = min(bytes, left)
	}
	packets := (bytes*full.Packets + full.Bytes - 1) / full.Bytes
	return Train{Packets: max(packets, 1), Bytes: bytes}
}

// read returns the next job of the receiving application's thread.
func (f *flow) read() (job, bool) {
	if f.readQueue.len() == 0 {
		return job{}, false
	}
	p := f.readQueue.pop()
	return job{UseApp, f.sim.b.stageStep(p, AppReceive), func() { f.sim.delivered(p) }}, true
}

// onAck handles an acknowledgement that arrived at the sender.
func (f *flow) onAck(ack *element) {
	f.inFlight -= ack.ackedBytes
	delay := f.sim.now - ack.dataEntered
	switch {
	case f.sim.cfg.ClosedLoop:
	case delay > delayTarget:
		f.reduceWindow(max(float64(delayTarget)/float64(delay), minReduction))
	case f.window < f.threshold:
		f.window += float64(ack.ackedBytes)
	default:
		f.window += float64(ack.ackedBytes) * increase / f.window
	}
	f.window = min(f.window, float64(f.sim.cfg.Window))
	f.app.wake()
}

// onLoss handles the loss of a train.
func (f *flow) onLoss(p *element) {
	f.inFlight -= p.train.Bytes
	f.unread -= p.train.Bytes
	f.reduceWindow(minReduction)
	f.app.wake()
}

// reduceWindow multiplies the window by share, at most once per round trip.
func (f *flow) reduceWindow(share float64) {
	if f.sim.now-f.lastReduction < delayTarget {
		return
	}
	f.lastReduction = f.sim.now
	f.window = max(f.window*share, minWindow)
	f.threshold = f.window
}

// startMouse starts a short flow, and schedules the next one.
func (s *sim) startMouse() {
	if s.stopped {
		return
	}
	const shape, low, high = 1.2, 4e3, 4e6
	u := s.rng.Float64()
	ratio := math.Pow(low/high, shape)
	size := low / math.Pow(1-u*(1-ratio), 1/shape)
	s.newFlow(int(size)).app.wake()
	mean := shape / (shape - 1) * low * (1 - math.Pow(low/high, shape-1)) / (1 - ratio)
	s.after(int64(s.rng.ExpFloat64()*mean/s.cfg.Mice*1e9), s.startMouse)
}

// sendPoisson sends a train of a flow without a window, and schedules the next one.
func (s *sim) sendPoisson(f *flow) {
	if s.stopped {
		return
	}
	s.a.enqueueTUN(f.nextElement(s.cfg.Train))
	s.after(int64(s.rng.ExpFloat64()/s.cfg.Poisson*1e9), func() { s.sendPoisson(f) })
}
