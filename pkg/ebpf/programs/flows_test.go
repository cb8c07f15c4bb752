// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestActiveFlowsHaveHashAndLane(t *testing.T) {
	m := newLaneModel(t, 8, time.Hour, them6)
	want := map[uint16]int{}
	for entry, flow := range m.labels(them6, 3) {
		want[uint16(entry)] = m.step(them6, flow, 1000)
	}
	flows, err := m.s.ActiveFlows()
	expect.NoError(t, err)
	if len(flows) != len(want) {
		t.Fatalf("got %+v, want %d flows", flows, len(want))
	}
	for _, f := range flows {
		if lane, ok := want[f.Hash]; !ok || f.Lane != lane || f.Idle < 0 || f.Idle >= time.Hour {
			t.Errorf("got %+v, want lane %d", f, lane)
		}
	}
	expect.NoError(t, m.s.SetGap(time.Duration(1<<tickShift)))
	if flows, err := m.s.ActiveFlows(); err != nil || len(flows) != 0 {
		t.Errorf("after the gap: got %+v, error %v, want none", flows, err)
	}
}
