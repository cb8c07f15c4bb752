// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// rig is the receive direction of a lane, which is driven step by step.
type rig struct {
	*lanetest.Rig
	rx     *Receiver
	budget Budget
}

func newRig(tb testing.TB) *rig { return newRigWithWorkers(tb, workpool.Config{}) }

// newHastyRig is newRigWithWorkers with a hasty clock.
func newHastyRig(tb testing.TB, cfg workpool.Config) *rig {
	tb.Helper()
	r := newRigWithWorkers(tb, cfg)
	r.Hasty()
	return r
}

// newRigWithWorkers is newRig with workers beside its lane.
func newRigWithWorkers(tb testing.TB, cfg workpool.Config) *rig {
	tb.Helper()
	r := &rig{Rig: lanetest.New(tb, cfg)}
	r.budget.Init(2)
	r.rx = New(r.Lane, Slots, &r.budget)
	r.rx.setSlots(Slots)
	r.rx.setSlots(rxTrains)
	r.Receiver = func(from underlay.Endpoint, run []byte, size int) {
		r.arriveFrom(0, from, run, size)
		r.rx.batch(1)
	}
	return r
}

// arrive puts a run of the peer's where the underlay would.
func (r *rig) arrive(slot int, l session.Layout, plain [][]byte) {
	d := &r.rx.in[slot]
	d.N, d.SegSize, d.From, d.Truncated = l.Size(), l.Stride(), lanetest.There, false
	for i, p := range plain {
		copy(d.Buf[i*l.Stride()+wire.DataHeaderLen:], p)
	}
	counter, _ := r.Remote.Reserve(l.Segments)
	r.Remote.SealTrain(&r.Scratch, d.Buf[:d.N], l, counter)
}

// batch handles n received elements completely.
func (r *Receiver) batch(n int) {
	for r.handleReceived(n); !r.idle(); r.handleReceived(0) {
	}
}

// arriveFrom makes run datagram i of the next batch.
func (r *rig) arriveFrom(i int, from underlay.Endpoint, run []byte, size int) {
	d := &r.rx.in[i]
	d.N, d.SegSize, d.From, d.Truncated = copy(d.Buf, run), size, from, false
}

// ordering makes the rig's lane one that may wait.
func (r *rig) ordering() {
	r.rx.recv.tryRecv, r.rx.orders.Enabled = func([]underlay.Datagrams) int { return 0 }, true
}
