// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/cost"
)

// BenchmarkElephantReceive receives as many trains at once as a socket buffer holds, and writes them to an in-memory TUN.
func BenchmarkElephantReceive(b *testing.B) {
	const trains = 8
	lanetest.Elephant(b, func(b *testing.B, cfg workpool.Config) {
		r := newRigWithWorkers(b, cfg)
		r.Shared.Clock = lane.NewClock()
		s := newSupply(b, r, 16*trains)
		m := cost.Of(b, trains*45, trains*45*1420)
		for b.Loop() {
			m.Outside(func() { s.arrive(trains) })
			r.rx.batch(trains)
		}
		m.Report()
		if got := r.Lane.Stats.Rx.Packets.Load(); got != uint64(b.N*trains*45) {
			b.Fatalf("got %d packets received, want %d", got, b.N*trains*45)
		}
		lanetest.ReportWorkers(b, r.Lane.OpenJobs.Stats())
	})
}

// supply is sealed trains of a peer. They are reused under new sessions that have not seen them.
type supply struct {
	rig     *rig
	keys    noise.Keys
	session *lane.Session
	trains  [][]byte
	layout  session.Layout
	next    int
	drain   []byte
}

func newSupply(tb testing.TB, r *rig, n int) *supply {
	s := &supply{
		rig: r, session: &lane.Session{Peer: r.Peer}, layout: session.NewLayout(45, 1420, 1420, lane.DefaultMTU),
		drain: make([]byte, 1<<16),
	}
	index, err := r.Shared.Sessions.Add(s.session)
	if err != nil {
		tb.Fatal(err)
	}
	s.keys = noise.Keys{Local: index, Remote: ^index, Initiator: true}
	theirs := noise.Keys{Local: ^index, Remote: index}
	remote, f := r.Keypair(theirs), flow.Flow{Ends: lanetest.In4}
	for range n {
		train := make([]byte, s.layout.Size())
		for i, p := range lanetest.PacketsOf(tb, f.Train(45, 1380)) {
			copy(train[i*s.layout.Stride()+wire.DataHeaderLen:], p)
		}
		first, _ := remote.Reserve(s.layout.Segments)
		remote.SealTrain(&r.Scratch, train, s.layout, first)
		s.trains = append(s.trains, train)
	}
	return s
}

// arrive delivers the next n trains, and reads the results of the last from the TUN.
func (s *supply) arrive(n int) {
	for s.rig.TUN.TryReceive(0, s.drain) > 0 {
	}
	if s.next == 0 {
		s.session.Keys.Store(s.rig.Keypair(s.keys))
	}
	for i := range n {
		s.rig.arriveFrom(i, lanetest.There, s.trains[s.next+i], s.layout.Stride())
	}
	s.next = (s.next + n) % len(s.trains)
}
