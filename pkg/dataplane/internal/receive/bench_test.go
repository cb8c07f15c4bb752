// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"fmt"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/cost"
)

func BenchmarkReceiveTrain(b *testing.B) {
	benchmarkReceive(b, 45, 1420, 1, (&flow.Flow{Ends: lanetest.In4}).Train(45, 1380))
}

// BenchmarkReceiveSingles receives as many datagrams as one receive call returns, which GRO did not join.
func BenchmarkReceiveSingles(b *testing.B) {
	for _, size := range []int{64, 1340} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			f := flow.Flow{Ends: lanetest.In4}
			var elements [][]byte
			for range Slots {
				elements = append(elements, f.Next(size-40))
			}
			benchmarkReceive(b, Slots, size, Slots, elements...)
		})
	}
}

// benchmarkReceive receives packets of size bytes in a number of runs, sealed anew for each batch.
func benchmarkReceive(b *testing.B, packets, size, runs int, elements ...[]byte) {
	r, plain, buf := newRig(b), lanetest.PacketsOf(b, elements...), make([]byte, 1<<16)
	l := session.NewLayout(packets/runs, size, size, lane.DefaultMTU)
	m := cost.Of(b, packets, packets*size)
	for b.Loop() {
		m.Outside(func() {
			for r.TUN.TryReceive(0, buf) > 0 {
			}
			for i := range runs {
				r.arrive(i, l, plain[i*l.Segments:(i+1)*l.Segments])
			}
		})
		r.rx.batch(runs)
	}
	m.Report()
	if got := r.Lane.Stats.Rx.Packets.Load(); got != uint64(b.N*packets) {
		b.Fatalf("got %d packets received, want %d", got, b.N*packets)
	}
}
