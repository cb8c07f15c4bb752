// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

// arrived is an element of n bytes for a receiver index, from a host's port.
func arrived(host byte, port uint16, index uint32, n int) underlay.Datagrams {
	d := underlay.Datagrams{Buf: make([]byte, max(n, 8)), N: n}
	d.From.Dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, host}), port)
	d.Buf[0] = byte(wire.TypeData)
	binary.LittleEndian.PutUint32(d.Buf[4:], index)
	return d
}

func TestFlowsThatSendLittleGoBeforeBulk(t *testing.T) {
	const bulk, ping = eager, eager - 1
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
			"a peer that roams", []underlay.Datagrams{
				arrived(1, 100, 7, bulk), arrived(2, 100, 7, ping), arrived(1, 101, 7, ping),
			}, 0,
		},
		{
			"one of several flows", []underlay.Datagrams{
				arrived(1, 100, 7, bulk), arrived(1, 101, 7, ping), arrived(1, 102, 7, ping), arrived(1, 102, 7, bulk),
			}, 0b10,
		},
		{"an empty one", []underlay.Datagrams{arrived(1, 100, 7, bulk), arrived(2, 100, 0, 0)}, 0b10},
	} {
		for head := range tt.in { // wherever in the ring it begins
			l := line{in: make([]underlay.Datagrams, len(tt.in)), head: head, count: len(tt.in)}
			for k, d := range tt.in {
				*l.at(k) = d
			}
			if got := l.sparse(); got != tt.want {
				t.Errorf("%s, from %d on: %b go first, want %b", tt.name, head, got, tt.want)
			}
		}
	}
}

// TestALineKeepsEveryFlowInOrderAndLosesNothing has elements arrive at random while a lane works, and notes in what order
// it handles them: every one once, and those of a source as they came.
func TestALineKeepsEveryFlowInOrderAndLosesNothing(t *testing.T) {
	for _, size := range []int{1, 2, straySlots, rxSlots} {
		rng := rand.New(rand.NewPCG(uint64(size), 2))
		l := line{in: make([]underlay.Datagrams, size)}
		arrivedAs, handled, passes := 0, map[netip.AddrPort]int{}, 0
		last, total := -1, 0
		handle := func(k int) {
			d := l.at(k)
			number := int(binary.LittleEndian.Uint32(d.Buf[8:]))
			if before, ok := handled[d.From.Dst]; ok && number <= before {
				t.Fatalf("element %d of a source was handled after %d", number, before)
			}
			handled[d.From.Dst] = number
			if number < last {
				passes++
			}
			last = number
			total++
		}
		for range 20000 {
			room := l.room()
			n := rng.IntN(len(room) + 1)
			for i := range n {
				host := rng.IntN(2)
				index := host
				if rng.IntN(500) == 0 {
					index = 1 - host
				}
				d := arrived(byte(host), uint16(rng.IntN(16)), uint32(index), 100)
				d.Buf = append(d.Buf[:8], 0, 0, 0, 0)
				if rng.IntN(8) == 0 {
					d.N = eager
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
			l.done |= first
			for k := range min(l.count, rng.IntN(4)) {
				if l.done>>k&1 == 0 {
					handle(k)
					l.done |= 1 << k
				}
			}
			l.retire()
		}
		if total+l.count < arrivedAs || total > arrivedAs {
			t.Errorf("of %d elements, %d were handled and %d wait", arrivedAs, total, l.count)
		}
		if size == rxSlots && passes == 0 {
			t.Error("nothing ever went first")
		}
	}
}

// waves is a way in on which every call finds the next batch.
type waves struct {
	batches [][]underlay.Datagrams
}

// TryRecv is underlay.Lane's.
func (a *waves) TryRecv(rx []underlay.Datagrams) int {
	if len(a.batches) == 0 {
		return 0
	}
	for i, d := range a.batches[0] {
		buf := rx[i].Buf
		copy(buf, d.Buf)
		rx[i], rx[i].Buf = d, buf
	}
	n := len(a.batches[0])
	a.batches = a.batches[1:]
	return n
}

// Recv implements underlay.Receiver.
func (a *waves) Recv(rx []underlay.Datagrams) (int, error) {
	if n := a.TryRecv(rx); n > 0 {
		return n, nil
	}
	return 0, net.ErrClosed
}

func TestWhatArrivesWhileBulkIsOpenedGoesBeforeTheRestOfIt(t *testing.T) {
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
