// SPDX-License-Identifier: Apache-2.0

package send

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/cost"
)

// The work of a lane between TUN and underlay: parse, look up, split, seal and send, or open, check, merge and write. The
// TUN and the underlay are fakes that cost next to nothing.

func BenchmarkTransmitTrain(b *testing.B) {
	r := newRig(b)
	benchmarkTransmit(b, r, 45, 1420, (&flow.Flow{Ends: lanetest.Out4}).Train(45, 1380))
}

func BenchmarkTransmitSmall(b *testing.B) {
	r := newRig(b)
	f := flow.Flow{Ends: lanetest.Out4}
	var elements [][]byte
	for range Slots {
		elements = append(elements, f.Next(64-40))
	}
	benchmarkTransmit(b, r, Slots, 64, elements...)
}

// BenchmarkTransmitManyFlows sends a batch of small packets of 64 flows: not spread, to be spread soon, and spread.
func BenchmarkTransmitManyFlows(b *testing.B) {
	sources := make([]uint8, 64)
	for i := range sources {
		sources[i] = uint8(i + 1)
	}
	for _, c := range []struct {
		name   string
		spread *lane.Spread
	}{{"off", nil}, {"pending", lane.NewSpread(nil)}, {"on", lane.NewSpread(sources)}} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b)
			r.Peer.Spread.Store(c.spread)
			var elements [][]byte
			for i := range Slots {
				elements = append(elements, manyFlows(64)[i%64].Next(64-40))
			}
			benchmarkTransmit(b, r, Slots, 64, elements...)
		})
	}
}

// benchmarkTransmit sends trains of the given number of packets of size bytes, from the buffers that TUN reads fill.
func benchmarkTransmit(b *testing.B, r *rig, packets, size int, elements ...[]byte) {
	r.Conn.Silent = true
	m := cost.Of(b, packets, packets*size)
	for b.Loop() {
		m.Outside(func() {
			for i, e := range elements {
				r.tx.out.batch.sizes[i] = copy(r.tx.out.batch.bufs[i], e)
			}
		})
		r.tx.reader.hash(r.tx.out.batch, len(elements)) // as reading does
		r.tx.sendBatch(len(elements))
	}
	m.Report()
	if r.Conn.Count != b.N*packets {
		b.Fatalf("got %d packets sent, want %d", r.Conn.Count, b.N*packets)
	}
}
