// SPDX-License-Identifier: Apache-2.0

package send

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// rig is the send direction of a lane, which is driven step by step.
type rig struct {
	*lanetest.Rig
	tx *Transmitter
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
	r.tx = New(r.Lane, Slots)
	r.tx.out.batch.grow() // tests fill the slots that they need
	return r
}

// newSlow returns the slow path to a port; nil for none.
func (r *rig) newSlow(port underlay.Port) *Slow {
	s := NewSlow(lane.New(r.Shared, 1, r.TUN.Queues()[0], nil), &r.SlowDrops)
	s.Attach(port)
	return s
}

// transmit sends one batch of trains through the transmitter.
func (r *rig) transmit(elements ...[]byte) {
	for i, e := range elements {
		r.tx.out.batch.sizes[i] = copy(r.tx.out.batch.bufs[i], e)
	}
	r.tx.reader.hash(r.tx.out.batch, len(elements))
	r.tx.sendBatch(len(elements))
}

// wait queues trains in the TUN.
func (r *rig) wait(trains ...[]byte) {
	r.TB.Helper()
	for _, e := range trains {
		if err := r.TUN.Inject(0, e); err != nil {
			r.TB.Fatal(err)
		}
	}
}

// carry queues trains in the TUN and lets the transmitter read them.
func (r *rig) carry(elements ...[]byte) {
	r.TB.Helper()
	for _, e := range elements {
		if err := r.TUN.Inject(0, e); err != nil {
			r.TB.Fatal(err)
		}
	}
	for n := 1; n > 0; {
		if n = r.tx.reader.tryRead(r.tx.out.batch); n > 0 {
			r.tx.sendBatch(n)
		}
	}
}
