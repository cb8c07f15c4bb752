// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// path is the path of packets through one or two devices with an established session.
type path struct {
	prepare func() // runs before each round
	in      []*queue
	batches []batch // of one round
	out     *packetCounter
	net     *memoryNet   // of the last device
	remote  *remote      // nil if both ends are devices
	want    [flows]train // the packets that must arrive, repeatedly
}

// batch is a set of elements that enter at the same time, by lane.
type batch struct {
	packets  int
	elements [][]element
}

// runRound sends all batches and waits until their packets have arrived.
func (p *path) runRound(tb testing.TB) {
	tb.Helper()
	timer := time.NewTimer(waitTimeout)
	defer timer.Stop()
	sent := p.out.n.Load()
	for _, l := range p.batches {
		putAll(p.in, l.elements)
		sent += int64(l.packets)
		p.out.await(tb, sent-window+minBatch, timer.C)
	}
	p.out.await(tb, sent, timer.C)
	if got := p.out.n.Load(); got != sent {
		tb.Fatalf("got %d packets, want %d", got, sent)
	}
}

// makeBatches distributes the trains of a round over batches and over the lanes of their flows.
func makeBatches(s shape, lanes int, elements func(k int) []element) (batches []batch) {
	for k := range s.trains {
		if len(batches) == 0 || batches[len(batches)-1].packets >= minBatch {
			batches = append(batches, batch{elements: make([][]element, lanes)})
		}
		l, lane := &batches[len(batches)-1], k%flows%lanes
		l.packets += s.train
		l.elements[lane] = append(l.elements[lane], elements(k)...)
	}
	return batches
}

// sendOne sends one packet and waits until it has arrived.
func sendOne(tb testing.TB, to *queue, p element, out *packetCounter) {
	tb.Helper()
	one := path{in: []*queue{to}, batches: []batch{{1, [][]element{{p}}}}, out: out}
	one.runRound(tb)
}

// newTX returns the path from the TUN of a device to its network.
func newTX(tb testing.TB, i implementation, s shape) *path {
	tb.Helper()
	e, r, ours, theirs := newDeviceUnderTest(tb, i)
	p := &path{prepare: func() {}, in: e.host, out: e.out.sent, net: e, remote: r, want: trainsOf(tb, ours, theirs, s)}
	p.batches = makeBatches(s, len(p.in), func(k int) []element { return i.elements(p.want[k%flows]) })
	return p
}

// newRX returns the path from the network of a device to its TUN. Its messages are sealed again before each round.
func newRX(tb testing.TB, i implementation, s shape) *path {
	tb.Helper()
	e, r, ours, theirs := newDeviceUnderTest(tb, i)
	p := &path{in: e.network, out: e.received, net: e, remote: r, want: trainsOf(tb, theirs, ours, s)}
	size := s.train * (s.size + wire.DataOverhead)
	memory := make([]byte, s.trains*size)
	p.batches = makeBatches(s, len(p.in), func(k int) []element { return i.messages(memory[k*size:(k+1)*size], size/s.train) })
	p.prepare = func() {
		for k := range s.trains {
			r.seal(memory[k*size:(k+1)*size], p.want[k%flows].packets)
		}
	}
	return p
}

// newBoth returns the path from the TUN of one device to the TUN of another.
func newBoth(tb testing.TB, i implementation, s shape) *path {
	tb.Helper()
	a, b := newMemoryNet(i.lanes()), newMemoryNet(i.lanes())
	connect(a, b)
	ours, theirs := newEndConfigs(tb)
	i.start(tb, a, ours)
	i.start(tb, b, theirs)
	p := &path{prepare: func() {}, in: a.host, out: b.received, net: b, want: trainsOf(tb, ours, theirs, s)}
	p.batches = makeBatches(s, len(p.in), func(k int) []element { return i.elements(p.want[k%flows]) })
	first := trainsOf(tb, ours, theirs, shape{size: 100, train: 1})[0]
	// The device stages the first packet, and sends it just before lanes see the session. A second packet might still be sent by
	// lane 0 instead of its own. After the second packet, all lanes see the session.
	for range 2 {
		sendOne(tb, a.host[0], i.elements(first)[0], p.out)
	}
	return p
}

// newDeviceUnderTest returns a device's memoryNet and its remote, with a session that has carried packets in both directions.
// Before that the device would stage packets, in a bounded queue.
func newDeviceUnderTest(tb testing.TB, i implementation) (e *memoryNet, r *remote, ours, theirs endConfig) {
	tb.Helper()
	e = newMemoryNet(i.lanes())
	ours, theirs = newEndConfigs(tb)
	i.start(tb, e, ours)
	r = newRemote(tb, e, theirs)
	first := trainsOf(tb, theirs, ours, shape{size: 100, train: 1})[0]
	run, stride := r.seal(make([]byte, 1024), first.packets)
	sendOne(tb, e.network[0], element{data: run, segSize: stride}, e.received)
	answer := trainsOf(tb, ours, theirs, shape{size: 100, train: 1})[0]
	sendOne(tb, e.host[0], i.elements(answer)[0], e.out.sent)
	return e, r, ours, theirs
}
