// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// arrived returns a datagram of n bytes for a receiver index, from a host's port.
func arrived(host byte, port uint16, index uint32, n int) underlay.Datagrams {
	d := underlay.Datagrams{Buf: make([]byte, max(n, 8)), N: n}
	d.From.Dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, host}), port)
	d.Buf[0] = byte(wire.TypeData)
	binary.LittleEndian.PutUint32(d.Buf[4:], index)
	return d
}

func TestSparseFlowsPassBulk(t *testing.T) {
	const bulk, ping = bulkThreshold, bulkThreshold - 1
	for _, tt := range []struct {
		name string
		in   []underlay.Datagrams
		want uint64
	}{
		{"nothing but bulk", []underlay.Datagrams{arrived(1, 100, 7, bulk), arrived(1, 101, 7, bulk)}, 0},
		{"nothing but little", []underlay.Datagrams{arrived(1, 100, 7, ping), arrived(1, 101, 7, ping)}, 0},
		{"another port of the peer", []underlay.Datagrams{arrived(1, 100, 7, bulk), arrived(1, 101, 7, ping)}, 0b10},
		{"the same port", []underlay.Datagrams{arrived(1, 100, 7, bulk), arrived(1, 100, 7, ping)}, 0},
		{"the same port, before it", []underlay.Datagrams{arrived(1, 100, 7, ping), arrived(1, 100, 7, bulk)}, 0},
		{"the same port after a rekey", []underlay.Datagrams{arrived(1, 100, 7, bulk), arrived(1, 100, 8, ping)}, 0},
		{"another peer", []underlay.Datagrams{arrived(1, 100, 7, bulk), arrived(2, 100, 8, ping)}, 0b10},
		{
			"one of several flows", []underlay.Datagrams{
				arrived(1, 100, 7, bulk), arrived(1, 101, 7, ping), arrived(1, 102, 7, ping), arrived(1, 102, 7, bulk),
			}, 0b10,
		},
		{"an empty one", []underlay.Datagrams{arrived(1, 100, 7, bulk), arrived(2, 100, 0, 0)}, 0b10},
		{
			"somebody who repeats what others send", []underlay.Datagrams{
				arrived(1, 100, 7, bulk), arrived(2, 100, 7, ping), arrived(1, 101, 7, ping),
			}, 0b110,
		},
	} {
		for head := range tt.in { // wherever in the ring it begins
			l := rxQueue{ring: make([]underlay.Datagrams, len(tt.in)), head: head, count: len(tt.in)}
			for k, d := range tt.in {
				*l.at(k) = d
			}
			if got := l.sparse(); got != tt.want {
				t.Errorf("%s, from %d on: %b go first, want %b", tt.name, head, got, tt.want)
			}
		}
	}
}

// TestRXQueueKeepsFlowOrderWithoutLoss receives datagrams at random while a lane works, and records in which order
// it handles them: every one once, and those of a source as they came.
func TestRXQueueKeepsFlowOrderWithoutLoss(t *testing.T) {
	for _, size := range []int{1, 2, secondarySlots, rxSlots} {
		rng := rand.New(rand.NewPCG(uint64(size), 2))
		l := rxQueue{ring: make([]underlay.Datagrams, size)}
		arrivedAs, handled, passes := 0, map[netip.AddrPort]int{}, 0
		last, total := -1, 0
		handle := func(k int) {
			d := l.at(k)
			number := int(binary.LittleEndian.Uint32(d.Buf[8:]))
			if before, ok := handled[d.From.Dst]; ok && number <= before {
				t.Fatalf("datagram %d of a source was handled after %d", number, before)
			}
			handled[d.From.Dst] = number
			if number < last {
				passes++
			}
			last = number
			total++
		}
		for range 20000 {
			room := l.free()
			n := rng.IntN(len(room) + 1)
			for i := range n {
				d := arrived(byte(rng.IntN(2)), uint16(rng.IntN(16)), 7, 100)
				d.Buf = append(d.Buf[:8], 0, 0, 0, 0)
				if rng.IntN(8) == 0 {
					d.N = bulkThreshold
				}
				binary.LittleEndian.PutUint32(d.Buf[8:], uint32(arrivedAs))
				arrivedAs++
				room[i] = d
			}
			l.count += n
			first := l.sparse()
			for k := range l.count {
				if first>>k&1 != 0 {
					handle(k)
				}
			}
			l.handled |= first
			for k := range min(l.count, rng.IntN(4)) {
				if l.handled>>k&1 == 0 {
					handle(k)
					l.handled |= 1 << k
				}
			}
			l.retire()
		}
		if total+l.count < arrivedAs || total > arrivedAs {
			t.Errorf("of %d datagrams, %d were handled and %d wait", arrivedAs, total, l.count)
		}
		if size == rxSlots && passes == 0 {
			t.Error("nothing ever went first")
		}
	}
}

// waves is a Receiver that returns the next batch on every call.
type waves struct {
	batches [][]underlay.Datagrams
}

// TryRecv is underlay.Lane's.
func (w *waves) TryRecv(rx []underlay.Datagrams) int {
	if len(w.batches) == 0 {
		return 0
	}
	for i, d := range w.batches[0] {
		buf := rx[i].Buf
		copy(buf, d.Buf)
		rx[i], rx[i].Buf = d, buf
	}
	n := len(w.batches[0])
	w.batches = w.batches[1:]
	return n
}

// Recv implements underlay.Receiver.
func (w *waves) Recv(rx []underlay.Datagrams) (int, error) {
	if n := w.TryRecv(rx); n > 0 {
		return n, nil
	}
	return 0, net.ErrClosed
}

func TestSparsePacketsPassRemainingBulk(t *testing.T) {
	r := newRig(t)
	element := func(port uint16, mark byte, packets int) underlay.Datagrams {
		var plain [][]byte
		for range packets {
			plain = append(plain, in4.UDP(append(make([]byte, 1299), mark)))
		}
		run, size := r.seal(plain...)
		from := there
		from.Dst = netip.AddrPortFrom(there.Dst.Addr(), port)
		return underlay.Datagrams{Buf: run, N: len(run), SegSize: size, From: from}
	}
	const trains = 47 // a quantum holds one of them, and a part of the second
	in := &waves{batches: [][]underlay.Datagrams{
		{element(1000, 'a', trains), element(1000, 'b', trains), element(1000, 'c', trains), element(1000, 'd', 1)},
		{element(1001, 'p', 1)},
	}}
	r.peer.Gathered.Store(&spread.Ports{First: 1000, Last: 1001})
	r.rx.run(in, in.TryRecv)
	var order []byte
	for _, p := range packetsOf(t, r.delivered()...) {
		if mark := p[len(p)-1]; len(order) == 0 || order[len(order)-1] != mark {
			order = append(order, mark)
		}
	}
	if got := string(order); got != "abpcd" {
		t.Errorf("the TUN was given %s, want abpcd", got)
	}
	if r.allDrops() != 0 {
		t.Errorf("%d packets were dropped", r.allDrops())
	}
}

// mover is a SlowPath that moves the endpoint on every Roam.
type mover struct {
	owner
	peer *Peer
}

func (m *mover) Roam(from underlay.Endpoint) { m.peer.Endpoint.Store(&from) }

func TestSparseFirstDoesNotMoveEndpoint(t *testing.T) {
	at := func(addr string, port uint16) underlay.Endpoint {
		return underlay.Endpoint{Dst: netip.AddrPortFrom(netip.MustParseAddr(addr), port), Src: there.Src}
	}
	announced := spread.Ports{First: 61000, Last: 61999}
	for _, tt := range []struct {
		name         string
		bulk, little underlay.Endpoint
		rekeyed      bool // between the two
		want         underlay.Endpoint
		order        string
	}{
		{"source ports", at("192.0.2.2", 61000), at("192.0.2.2", 61001), false, there, "lb"},
		{"source ports and a rekey", at("192.0.2.2", 61000), at("192.0.2.2", 61001), true, there, "lb"},
		{"another address", there, at("198.51.100.7", 51820), false, at("198.51.100.7", 51820), "bl"},
		{"another address and a rekey", there, at("198.51.100.7", 51820), true, at("198.51.100.7", 51820), "bl"},
		{"another port of a NAT", there, at("192.0.2.2", 9), false, at("192.0.2.2", 9), "bl"},
		{"another address, and back", at("198.51.100.7", 51820), there, false, there, "bl"},
		{"another address by a source port, and back", at("198.51.100.7", 61000), there, false, there, "bl"},
	} {
		r := newRig(t)
		r.peer.SlowPath = &mover{peer: r.peer}
		r.peer.Gathered.Store(&announced)
		put := func(k int, from underlay.Endpoint, mark byte, packets int) {
			d := r.rx.at(k)
			d.N = 0
			for range packets {
				msg := r.message(r.remote, in4.UDP(append(make([]byte, 1299), mark)))
				d.N += copy(d.Buf[d.N:], msg)
				d.SegSize = len(msg)
			}
			d.From, d.ECN, d.Truncated = from, 0, false
			r.rx.count++
		}
		put(0, tt.bulk, 'b', 20)
		if tt.rekeyed {
			_, r.remote = r.newSession(r.peer, true)
		}
		put(1, tt.little, 'l', 1)
		for r.rx.count > 0 {
			r.rx.handleQueued()
		}
		order := ""
		for _, p := range packetsOf(t, r.delivered()...) {
			if mark := string(p[len(p)-1:]); !strings.HasSuffix(order, mark) {
				order += mark
			}
		}
		if order != tt.order || *r.peer.Endpoint.Load() != tt.want {
			t.Errorf("%s: opened as %s, and the peer is at %v; want %s, %v", tt.name, order, r.peer.Endpoint.Load().Dst, tt.order, tt.want.Dst)
		}
	}
}

func TestRoamingPeerDoesNotDelayOthers(t *testing.T) {
	r := newRig(t)
	q, _ := r.newPeer("10.0.0.3/32")
	_, theirs := r.newSession(q, true)
	elsewhere := netip.MustParseAddrPort("198.51.100.7:51820")
	put := func(k int, from netip.AddrPort, msg []byte, n int) {
		d := r.rx.at(k)
		d.N, d.SegSize, d.From = n, n, there
		copy(d.Buf, msg)
		d.From.Dst = from
		r.rx.count++
	}
	mine := r.message(r.remote, nil)
	put(0, there.Dst, mine, bulkThreshold)
	put(1, elsewhere, mine, len(mine))
	put(2, netip.AddrPortFrom(elsewhere.Addr(), 9), r.message(theirs, nil), len(mine)) // roams too, and has no bulk
	put(3, there.Dst, r.message(theirs, nil), len(mine))
	put(4, elsewhere, make([]byte, len(mine)), len(mine))
	put(5, netip.AddrPortFrom(there.Dst.Addr(), 5), make([]byte, len(mine)), len(mine))
	if first := r.rx.sparseFirst(); first != 0b110000 {
		t.Errorf("got first batch %b, want 0b110000", first)
	}
	q.Endpoint.Store(&underlay.Endpoint{Dst: netip.AddrPortFrom(elsewhere.Addr(), 9), Src: there.Src})
	r.rx.at(3).From.Dst = r.rx.at(2).From.Dst
	if first := r.rx.sparseFirst(); first != 0b111100 {
		t.Errorf("sparse-first mask %b while the other peer does not roam", first)
	}
	if n := testing.AllocsPerRun(20, func() { r.rx.sparseFirst() }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// TestSparseFlowsDoNotStarveBulk keeps the queue full of datagrams from new sources, as an
// attacker with spoofed addresses does.
func TestSparseFlowsDoNotStarveBulk(t *testing.T) {
	r := newRig(t)
	const bulk, packets = 16, 47
	for k := range bulk {
		run, size := r.message(r.remote, in4.UDP(make([]byte, 1300))), 0
		size = len(run)
		for range packets - 1 {
			run = append(run, r.message(r.remote, in4.UDP(make([]byte, 1300)))...)
		}
		d := r.rx.at(k)
		d.N, d.SegSize, d.From = copy(d.Buf, run), size, there
	}
	r.rx.count = bulk
	arrivals := bulk
	for opened := 0; opened < bulk*packets; {
		for room := r.rx.free(); len(room) > 0; room = r.rx.free() {
			for i := range room {
				d := arrived(9, uint16(arrivals), 77, wire.DataOverhead)
				room[i].N, room[i].SegSize, room[i].From = copy(room[i].Buf, d.Buf), d.N, d.From
				arrivals++
			}
			r.rx.count += len(room)
		}
		r.rx.handleQueued()
		n := len(packetsOf(t, r.delivered()...))
		if n < packets {
			t.Fatalf("a turn opened %d packets after %d", n, opened)
		}
		opened += n
	}
	if limit := bulk + 2*maxQueued; arrivals > limit {
		t.Errorf("%d datagrams had arrived when the bulk was opened, want at most %d", arrivals, limit)
	}
	for r.rx.count > 0 {
		r.rx.handleQueued()
	}
	if runs := r.engine.lanes[0].stats.rx.runs.Load(); runs != uint64(arrivals) {
		t.Errorf("counted %d datagrams, want %d", runs, arrivals)
	}
	if got := r.drops(drop.RXUnknownIndex); int(got) != arrivals-bulk {
		t.Errorf("%d of %d forgeries were dropped", got, arrivals-bulk)
	}
}

// closing is a Receiver that is closed while datagrams wait in the queue.
type closing struct{ waves }

// TryRecv is underlay.Lane's.
func (*closing) TryRecv([]underlay.Datagrams) int { return 0 }

func TestReceivedPacketsAreHandledAfterPortCloses(t *testing.T) {
	r := newRig(t)
	var batch []underlay.Datagrams
	for k := range 9 {
		var plain [][]byte
		for range 20 {
			plain = append(plain, in4.UDP(append(make([]byte, 1299), byte(k))))
		}
		run, size := r.seal(plain...)
		batch = append(batch, underlay.Datagrams{Buf: run, N: len(run), SegSize: size, From: there})
	}
	in := &closing{waves{batches: [][]underlay.Datagrams{batch}}}
	r.rx.run(in, in.TryRecv)
	if n := len(packetsOf(t, r.delivered()...)); n != 180 {
		t.Errorf("%d of 180 packets were delivered", n)
	}
}

// BenchmarkSparse measures the worst case of sparse: each small datagram has the source of the last bulk datagram.
func BenchmarkSparse(b *testing.B) {
	l := rxQueue{ring: make([]underlay.Datagrams, maxQueued), head: maxQueued / 3, count: maxQueued}
	for k := range maxQueued {
		n, port := bulkThreshold, uint16(k)
		if k >= maxQueued/2 {
			n, port = 100, maxQueued/2-1
		}
		*l.at(k) = arrived(1, port, 7, n)
	}
	b.ReportAllocs()
	for b.Loop() {
		if l.sparse() != 0 {
			b.Fatal("something passes")
		}
	}
}

func TestRXQueueRetireClearsMasks(t *testing.T) {
	l := rxQueue{ring: make([]underlay.Datagrams, 8), head: 6, count: 5, handled: 0b01011, considered: 0b01110}
	l.retire()
	if l.head != 0 || l.count != 3 || l.handled != 0b010 || l.considered != 0b011 {
		t.Errorf("head %d, count %d, done %b, seen %b", l.head, l.count, l.handled, l.considered)
	}
}
