// SPDX-License-Identifier: Apache-2.0

package send

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
)

func TestTransmitAllocatesNothing(t *testing.T) {
	lanetest.ForEachObserved(t, transmitAllocatesNothing)
}

func transmitAllocatesNothing(t *testing.T, observe func(*lanetest.Rig)) {
	t.Helper()
	for name, elements := range lanetest.Batches(lanetest.Out4) {
		r := newRig(t)
		observe(r.Rig)
		r.Conn.Silent = true
		r.transmit(elements...)
		if n := testing.AllocsPerRun(50, func() { r.transmit(elements...) }); n != 0 {
			t.Errorf("%s: got %v allocations per batch, want 0", name, n)
		}
		if r.AllDrops() != 0 {
			t.Errorf("%s: got %d drops, want 0", name, r.AllDrops())
		}
	}
}
