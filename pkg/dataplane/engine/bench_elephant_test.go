// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/cost"
)

// An elephant is one flow, so one lane, that always has more to send. The gain of a worker is the ratio of the two
// benchmarks, given a core that is idle.

func elephant(b *testing.B, benchmark func(b *testing.B, r *rig)) {
	for _, workers := range []int{0, 1} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			before := runtime.GOMAXPROCS(runtime.NumCPU() + 2) // as `ropewalk run`, which counts busy-polling workers
			b.Cleanup(func() { runtime.GOMAXPROCS(before) })
			r := newRigWithWorkers(b, workpool.Config{Workers: workers, BusyPoll: true})
			r.conn.silent = true
			r.engine.cfg.Clock = NewClock()
			benchmark(b, r)
		})
	}
}

// reportWorkers reports how many jobs the workers have run.
func reportWorkers(b *testing.B, s workpool.Stats) {
	if s.Submitted > 0 {
		b.ReportMetric(float64(s.Done)/float64(s.Submitted), "by-workers")
		b.ReportMetric(float64(s.BackOffs), "back-offs")
	}
}

// BenchmarkElephantTransmit reads trains from an in-memory TUN, and sends them nowhere.
func BenchmarkElephantTransmit(b *testing.B) {
	const trains = 32
	train := (&flow.Flow{Ends: out4}).Train(45, 1380)
	elephant(b, func(b *testing.B, r *rig) {
		m := cost.Of(b, trains*45, trains*45*1420)
		for b.Loop() {
			m.Outside(func() {
				for range trains {
					if err := r.tun.Inject(0, train); err != nil {
						b.Fatal(err)
					}
				}
			})
			for sent := r.conn.count + trains*45; r.conn.count < sent; {
				n, err := r.tx.reader.read(r.tx.txBatch)
				if err != nil {
					b.Fatal(err)
				}
				r.tx.sendBatch(n)
			}
		}
		m.Report()
		reportWorkers(b, r.engine.lanes[0].sealJobs.Stats())
	})
}

// BenchmarkElephantReceive receives as many trains at once as a socket buffer holds, and writes them to an in-memory TUN.
func BenchmarkElephantReceive(b *testing.B) {
	const trains = 8
	elephant(b, func(b *testing.B, r *rig) {
		s := newSupply(b, r, 16*trains)
		m := cost.Of(b, trains*45, trains*45*1420)
		for b.Loop() {
			m.Outside(func() { s.arrive(trains) })
			r.rx.batch(trains)
		}
		m.Report()
		if got := r.engine.lanes[0].stats.rx.packets.Load(); got != uint64(b.N*trains*45) {
			b.Fatalf("got %d packets received, want %d", got, b.N*trains*45)
		}
		reportWorkers(b, r.engine.lanes[0].openJobs.Stats())
	})
}

// supply is sealed trains of a peer. They are reused under new sessions that have not seen them.
type supply struct {
	rig     *rig
	keys    noise.Keys
	session *Session
	trains  [][]byte
	layout  session.Layout
	next    int
	drain   []byte
}

func newSupply(tb testing.TB, r *rig, n int) *supply {
	s := &supply{
		rig: r, session: &Session{Peer: r.peer}, layout: session.NewLayout(45, 1420, 1420, DefaultMTU),
		drain: make([]byte, 1<<16),
	}
	index, err := r.engine.Sessions.Add(s.session)
	if err != nil {
		tb.Fatal(err)
	}
	s.keys = noise.Keys{Local: index, Remote: ^index, Initiator: true}
	theirs := noise.Keys{Local: ^index, Remote: index}
	remote, f := r.keypair(theirs), flow.Flow{Ends: in4}
	for range n {
		train := make([]byte, s.layout.Size())
		for i, p := range packetsOf(tb, f.Train(45, 1380)) {
			copy(train[i*s.layout.Stride()+wire.DataHeaderLen:], p)
		}
		first, _ := remote.Reserve(s.layout.Segments)
		remote.SealTrain(&r.scratch, train, s.layout, first)
		s.trains = append(s.trains, train)
	}
	return s
}

// arrive delivers the next n trains, and reads the results of the last from the TUN.
func (s *supply) arrive(n int) {
	for s.rig.tun.TryReceive(0, s.drain) > 0 {
	}
	if s.next == 0 {
		s.session.Keys.Store(s.rig.keypair(s.keys))
	}
	for i := range n {
		s.rig.arriveFrom(i, there, s.trains[s.next+i], s.layout.Stride())
	}
	s.next = (s.next + n) % len(s.trains)
}
