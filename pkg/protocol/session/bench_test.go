// SPDX-License-Identifier: Apache-2.0

package session

import (
	crand "crypto/rand"
	"math/rand/v2"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/test/cost"
)

// load is sealed or opened at once: trains of one layout.
type load struct {
	name   string
	trains int
	layout Layout
}

var loads = []load{ // layouts: segments, plaintext bytes, those of the last, MTU
	{"train of 45x1420B", 1, NewLayout(45, 1420, 1420, 1420)},
	{"train of 64x64B", 1, NewLayout(64, 64, 64, 1420)},
	{"64 single 64B", 64, NewLayout(1, 64, 64, 1420)},
	{"45 single 1420B", 45, NewLayout(1, 1420, 1420, 1420)},
}

func (l load) packets() int { return l.trains * l.layout.Segments }

func (l load) bytes() int { return l.packets() * l.layout.Plain }

func BenchmarkSeal(b *testing.B) {
	for _, l := range loads {
		b.Run(l.name, func(b *testing.B) {
			k, _ := newPair(b, 0)
			s, size := new(Scratch), l.layout.Size()
			buf := make([]byte, l.trains*size)
			m := cost.Of(b, l.packets(), l.bytes())
			for b.Loop() {
				for at := 0; at < len(buf); at += size {
					first, _ := k.Reserve(l.layout.Segments)
					k.SealTrain(s, buf[at:at+size], l.layout, first)
				}
			}
			m.Report()
		})
	}
}

// BenchmarkOpen opens the same messages again and again, into a window that has not seen them.
func BenchmarkOpen(b *testing.B) {
	for _, l := range loads {
		b.Run(l.name, func(b *testing.B) {
			k, peer := newPair(b, 0)
			var fresh []byte
			for range l.trains {
				train, _ := sealed(b, k, l.layout)
				fresh = append(fresh, train...)
			}
			s, size, out := new(Scratch), l.layout.Size(), make([]Message, l.layout.Segments)
			buf := make([]byte, len(fresh))
			m := cost.Of(b, l.packets(), l.bytes())
			for b.Loop() {
				m.Outside(func() {
					copy(buf, fresh)
					peer.window = Window{}
				})
				for at := 0; at < len(buf); at += size {
					peer.OpenTrain(s, 0, buf[at:at+size], l.layout.Stride(), out)
				}
			}
			m.Report()
			if last := out[len(out)-1]; last.Drop != drop.None || wire.DataOverhead+len(last.Padded) != l.layout.Stride() {
				b.Fatal(last.Drop)
			}
		})
	}
}

// BenchmarkWindow passes 45 counters at once, or singly, through the replay window.
func BenchmarkWindow(b *testing.B) {
	const packets = 45
	inOrder, mixed := make([]uint64, packets), make([]uint64, packets)
	for i, at := range rand.New(rand.NewPCG(1, 2)).Perm(packets) {
		inOrder[i], mixed[i] = uint64(i), uint64(at)
	}
	for _, c := range []struct {
		name     string
		counters []uint64
		single   bool
	}{{"run in order", inOrder, false}, {"run reordered", mixed, false}, {"singles in order", inOrder, true}} {
		b.Run(c.name, func(b *testing.B) {
			var w Window
			counters, fresh := make([]uint64, packets), make([]bool, packets)
			m := cost.Of(b, packets, 0)
			for base := uint64(0); b.Loop(); base += packets {
				for i, n := range c.counters {
					counters[i] = base + n
				}
				acceptAll(&w, counters, fresh, c.single)
			}
			m.Report()
			if !fresh[0] || !fresh[packets-1] {
				b.Fatal("a fresh counter was refused")
			}
		})
	}
}

func acceptAll(w *Window, counters []uint64, fresh []bool, single bool) {
	if !single {
		w.AcceptRun(counters, fresh)
		return
	}
	for i, c := range counters {
		fresh[i] = w.Accept(c)
	}
}

// BenchmarkTableLookup looks up the receiver indices of 1024 sessions.
func BenchmarkTableLookup(b *testing.B) {
	table := NewTable[int](crand.Reader)
	indices := make([]uint32, 1024)
	for i := range indices {
		indices[i] = mustAdd(b, table, i)
	}
	found := 0
	m := cost.Of(b, len(indices), 0)
	for b.Loop() {
		for _, index := range indices {
			if _, ok := table.Lookup(index); ok {
				found++
			}
		}
	}
	m.Report()
	if found != b.N*len(indices) {
		b.Fatalf("%d of %d sessions found", found, b.N*len(indices))
	}
}
