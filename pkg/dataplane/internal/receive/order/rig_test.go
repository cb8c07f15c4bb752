// SPDX-License-Identifier: Apache-2.0

package order

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// orderRig is the orders of a lane, with a Sink that writes each packet to the TUN.
type orderRig struct {
	*lanetest.Rig
	orders  Orders
	buffers lane.BufferSet
	budget  lane.Budget
	opened  []session.Message
}

func newOrderRig(tb testing.TB) *orderRig {
	tb.Helper()
	r := &orderRig{Rig: lanetest.New(tb, workpool.Config{}), opened: make([]session.Message, 65536/wire.DataOverhead)}
	r.budget.Init(64<<20, 32<<20, 1<<20, 1)
	r.orders = New(r.Lane, r, &r.buffers, &lane.Allowance{Budget: &r.budget})
	r.orders.Enabled = true
	r.Receiver = r.take
	return r
}

// take opens a run, and delivers it as a receiver does.
func (r *orderRig) take(from underlay.Endpoint, run []byte, size int) {
	s, _ := r.Shared.Sessions.Lookup(wire.ReceiverIndex(run))
	keys, origin := s.Keys.Load(), Origin{Datagrams: underlay.Datagrams{From: from}}
	n := keys.OpenTrain(&r.Scratch, r.Now, run, size, r.opened)
	if r.orders.Concerns(keys) {
		r.orders.DeliverRun(r.Now, s, keys, run, size, r.opened[:n], 0, &origin)
	} else {
		r.Deliver(s, keys, r.opened[:n], 0, &origin)
	}
	r.tend()
}

// tend ends a batch of the receiver.
func (r *orderRig) tend() {
	r.orders.Tend(r.Now)
	r.buffers.Recycle()
}

// Deliver implements Sink.
func (r *orderRig) Deliver(_ *lane.Session, _ *session.Keypair, opened []session.Message, _ uint64, _ *Origin) {
	for _, m := range opened {
		r.Lane.Stats.Drops.Add(m.Drop, 1)
		if n, ok := packet.Length(m.Padded); m.Drop == drop.None && ok {
			if err := r.Lane.Queue.Write([][]byte{flow.WithVnetHeader(m.Padded[:n])}); err != nil {
				r.TB.Error(err)
			}
		}
	}
}

// FlushIfFull implements Sink.
func (*orderRig) FlushIfFull() {}
