// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

func BenchmarkTransmitTrain(b *testing.B) {
	r := newRig(b)
	r.conn.silent = true
	train := (&flow.Flow{Ends: out4}).Train(45, 1380)
	b.SetBytes(45 * 1420)
	for b.Loop() {
		r.transmit(train)
	}
}

func BenchmarkTransmitSmall(b *testing.B) {
	r := newRig(b)
	r.conn.silent = true
	f := flow.Flow{Ends: out4}
	var elements [][]byte
	for range txSlots {
		elements = append(elements, f.Next(64-40))
	}
	b.SetBytes(64 * txSlots)
	for b.Loop() {
		r.transmit(elements...)
	}
}

// BenchmarkTransmitManyFlows sends a batch of small packets of 64 flows: not spread, to be spread soon, and spread.
func BenchmarkTransmitManyFlows(b *testing.B) {
	sources := make([]uint8, 64)
	for i := range sources {
		sources[i] = uint8(i + 1)
	}
	for name, s := range map[string]*Spread{"off": nil, "pending": NewSpread(nil), "on": NewSpread(sources)} {
		b.Run(name, func(b *testing.B) {
			r := newRig(b)
			r.conn.silent = true
			r.peer.Spread.Store(s)
			var elements [][]byte
			for i := range txSlots {
				elements = append(elements, manyFlows(64)[i%64].Next(64-40))
			}
			b.SetBytes(64 * txSlots)
			for b.Loop() {
				r.transmit(elements...)
			}
		})
	}
}

// BenchmarkReceiveTrain seals the next batch of trains outside of the time measured.
func BenchmarkReceiveTrain(b *testing.B) {
	const trains = 64
	r := newRig(b)
	packets := packetsOf(b, (&flow.Flow{Ends: in4}).Train(45, 1380))
	buf := make([]byte, 1<<16)
	sealed, size := make([][]byte, trains), 1420+wire.DataOverhead
	b.SetBytes(45 * 1420)
	at := trains
	for b.Loop() {
		if at == trains {
			b.StopTimer()
			for i := range sealed {
				sealed[i], _ = r.seal(packets...)
			}
			at = 0
			b.StartTimer()
		}
		r.receive(sealed[at], size)
		at++
		for r.tun.TryReceive(0, buf) > 0 {
		}
	}
}
