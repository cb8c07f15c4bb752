// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// path is a way through one device, or two, on a session that stands.
type path struct {
	prepare func() // runs before each lap
	in      []*queue
	lots    []lot // of a lap
	out     *tally
	edges   *edges       // of the device at the end
	remote  *remote      // nil where both ends are devices
	want    [flows]train // what comes out, over and over
}

// lot is what is given at once, to each lane its share.
type lot struct {
	packets int
	parcels [][]element
}

// lap carries all lots through.
func (p *path) lap(tb testing.TB) {
	tb.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	under := p.out.n.Load()
	for _, l := range p.lots {
		give(p.in, l.parcels)
		under += int64(l.packets)
		p.out.await(tb, under-window+chunk, timer.C)
	}
	p.out.await(tb, under, timer.C)
	if got := p.out.n.Load(); got != under {
		tb.Fatalf("%d packets came out, want %d", got, under)
	}
}

// deal makes lots of the trains of a lap, each of which is for the lane of its flow.
func deal(s shape, lanes int, parcels func(k int) []element) (lots []lot) {
	for k := range s.lap {
		if len(lots) == 0 || lots[len(lots)-1].packets >= chunk {
			lots = append(lots, lot{parcels: make([][]element, lanes)})
		}
		l, lane := &lots[len(lots)-1], k%flows%lanes
		l.packets += s.train
		l.parcels[lane] = append(l.parcels[lane], parcels(k)...)
	}
	return lots
}

// once carries one packet, in whatever form, and waits until it has come out.
func once(tb testing.TB, to *queue, p element, out *tally) {
	tb.Helper()
	one := path{in: []*queue{to}, lots: []lot{{1, [][]element{{p}}}}, out: out}
	one.lap(tb)
}

// newTX is from the TUN of a device to its network.
func newTX(tb testing.TB, i implementation, s shape) *path {
	tb.Helper()
	e, r, ours, theirs := underTest(tb, i)
	p := &path{prepare: func() {}, in: e.host, out: e.out.sent, edges: e, remote: r, want: trainsOf(tb, ours, theirs, s)}
	p.lots = deal(s, len(p.in), func(k int) []element { return i.elements(p.want[k%flows]) })
	return p
}

// newRX is from the network of a device to its TUN. Each lap is sealed anew.
func newRX(tb testing.TB, i implementation, s shape) *path {
	tb.Helper()
	e, r, ours, theirs := underTest(tb, i)
	p := &path{in: e.cable, out: e.received, edges: e, remote: r, want: trainsOf(tb, theirs, ours, s)}
	size := s.train * (s.size + wire.DataOverhead)
	memory := make([]byte, s.lap*size)
	p.lots = deal(s, len(p.in), func(k int) []element { return i.messages(memory[k*size:(k+1)*size], size/s.train) })
	p.prepare = func() {
		for k := range s.lap {
			r.seal(memory[k*size:(k+1)*size], p.want[k%flows].packets)
		}
	}
	return p
}

// newBoth is from the TUN of one device to that of another.
func newBoth(tb testing.TB, i implementation, s shape) *path {
	tb.Helper()
	a, b := newEdges(i.lanes()), newEdges(i.lanes())
	join(a, b)
	ours, theirs := newSides(tb)
	i.start(tb, a, ours)
	i.start(tb, b, theirs)
	p := &path{prepare: func() {}, in: a.host, out: b.received, edges: b, want: trainsOf(tb, ours, theirs, s)}
	p.lots = deal(s, len(p.in), func(k int) []element { return i.elements(p.want[k%flows]) })
	first := trainsOf(tb, ours, theirs, shape{size: 100, train: 1})[0]
	// The first waits for the session and goes out just before lanes may use that; what finds it unpublished still leaves by
	// lane 0, where its flow may not be. By the time the second is out it is published.
	for range 2 {
		once(tb, a.host[0], i.elements(first)[0], p.out)
	}
	return p
}

// underTest returns a device's edges and its remote, on a session used in both directions. A device stages packets
// until its session is confirmed, and the staging queue is bounded.
func underTest(tb testing.TB, i implementation) (e *edges, r *remote, ours, theirs side) {
	tb.Helper()
	e = newEdges(i.lanes())
	ours, theirs = newSides(tb)
	i.start(tb, e, ours)
	r = newRemote(tb, e, theirs)
	first := trainsOf(tb, theirs, ours, shape{size: 100, train: 1})[0]
	run, stride := r.seal(make([]byte, 1024), first.packets)
	once(tb, e.cable[0], element{data: run, segSize: stride}, e.received)
	answer := trainsOf(tb, ours, theirs, shape{size: 100, train: 1})[0]
	once(tb, e.host[0], i.elements(answer)[0], e.out.sent)
	return e, r, ours, theirs
}
