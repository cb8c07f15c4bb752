// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/cost"
)

// The work of a lane between TUN and underlay: parse, look up, split, seal and send, or open, check, merge and write. The
// TUN and the underlay are fakes that cost next to nothing.

func BenchmarkTransmitTrain(b *testing.B) {
	r := newRig(b)
	benchmarkTransmit(b, r, 45, 1420, (&flow.Flow{Ends: out4}).Train(45, 1380))
}

func BenchmarkTransmitSmall(b *testing.B) {
	r := newRig(b)
	f := flow.Flow{Ends: out4}
	var elements [][]byte
	for range txSlots {
		elements = append(elements, f.Next(64-40))
	}
	benchmarkTransmit(b, r, txSlots, 64, elements...)
}

// BenchmarkTransmitManyFlows sends a batch of small packets of 64 flows: not spread, to be spread soon, and spread.
func BenchmarkTransmitManyFlows(b *testing.B) {
	sources := make([]uint8, 64)
	for i := range sources {
		sources[i] = uint8(i + 1)
	}
	for _, c := range []struct {
		name   string
		spread *Spread
	}{{"off", nil}, {"pending", NewSpread(nil)}, {"on", NewSpread(sources)}} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b)
			r.peer.Spread.Store(c.spread)
			var elements [][]byte
			for i := range txSlots {
				elements = append(elements, manyFlows(64)[i%64].Next(64-40))
			}
			benchmarkTransmit(b, r, txSlots, 64, elements...)
		})
	}
}

// benchmarkTransmit sends trains of the given number of packets of size bytes, from the buffers that TUN reads fill.
func benchmarkTransmit(b *testing.B, r *rig, packets, size int, elements ...[]byte) {
	r.conn.silent = true
	m := cost.Of(b, packets, packets*size)
	for b.Loop() {
		m.Outside(func() {
			for i, e := range elements {
				r.tx.sizes[i] = copy(r.tx.bufs[i], e)
			}
		})
		r.tx.reader.hash(r.tx.txBatch, len(elements)) // as reading does
		r.tx.sendBatch(len(elements))
	}
	m.Report()
	if r.conn.count != b.N*packets {
		b.Fatalf("got %d packets sent, want %d", r.conn.count, b.N*packets)
	}
}

func BenchmarkReceiveTrain(b *testing.B) {
	benchmarkReceive(b, 45, 1420, 1, (&flow.Flow{Ends: in4}).Train(45, 1380))
}

// BenchmarkReceiveSmall receives as many datagrams as one receive call returns.
func BenchmarkReceiveSmall(b *testing.B) {
	f := flow.Flow{Ends: in4}
	var elements [][]byte
	for range rxSlots {
		elements = append(elements, f.Next(64-40))
	}
	benchmarkReceive(b, rxSlots, 64, rxSlots, elements...)
}

// benchmarkReceive receives packets of size bytes in a number of runs, sealed anew for each batch.
func benchmarkReceive(b *testing.B, packets, size, runs int, elements ...[]byte) {
	r, plain, buf := newRig(b), packetsOf(b, elements...), make([]byte, 1<<16)
	l := session.NewLayout(packets/runs, size, size, DefaultMTU)
	m := cost.Of(b, packets, packets*size)
	for b.Loop() {
		m.Outside(func() {
			for r.tun.TryReceive(0, buf) > 0 {
			}
			for i := range runs {
				r.arrive(i, l, plain[i*l.Segments:(i+1)*l.Segments])
			}
		})
		r.rx.batch(runs)
	}
	m.Report()
	if got := r.engine.lanes[0].stats.rx.packets.Load(); got != uint64(b.N*packets) {
		b.Fatalf("got %d packets received, want %d", got, b.N*packets)
	}
}

// arrive puts a run of the peer's where the underlay would.
func (r *rig) arrive(slot int, l session.Layout, plain [][]byte) {
	d := &r.rx.in[slot]
	d.N, d.SegSize, d.From, d.Truncated = l.Size(), l.Stride(), there, false
	for i, p := range plain {
		copy(d.Buf[i*l.Stride()+wire.DataHeaderLen:], p)
	}
	counter, _ := r.remote.Reserve(l.Segments)
	r.remote.SealTrain(&r.scratch, d.Buf[:d.N], l, counter)
}
