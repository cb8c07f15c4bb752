// SPDX-License-Identifier: Apache-2.0

package send

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/cost"
)

// BenchmarkElephantTransmit reads trains from an in-memory TUN, and sends them nowhere.
func BenchmarkElephantTransmit(b *testing.B) {
	const trains = 32
	train := (&flow.Flow{Ends: lanetest.Out4}).Train(45, 1380)
	lanetest.Elephant(b, func(b *testing.B, cfg workpool.Config) {
		r := newRigWithWorkers(b, cfg)
		r.Conn.Silent = true
		r.Shared.Clock = lane.NewClock()
		m := cost.Of(b, trains*45, trains*45*1420)
		for b.Loop() {
			m.Outside(func() {
				for range trains {
					if err := r.TUN.Inject(0, train); err != nil {
						b.Fatal(err)
					}
				}
			})
			for sent := r.Conn.Count + trains*45; r.Conn.Count < sent; {
				n, err := r.tx.reader.read(r.tx.out.batch)
				if err != nil {
					b.Fatal(err)
				}
				r.tx.sendBatch(n)
			}
		}
		m.Report()
		lanetest.ReportWorkers(b, r.Lane.SealJobs.Stats())
	})
}
