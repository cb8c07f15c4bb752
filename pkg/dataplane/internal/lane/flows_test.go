// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestCountingEndsAfterLastRequest runs in a bubble, in which the engine's own timer never fires: the test takes its part.
func TestCountingEndsAfterLastRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := int64(time.Hour)
		l := New(NewShared(nil, nil, nil, 1, false), 0, nil, nil)
		o := NewObserver(func() int64 { return now }, l)
		counted := func() bool { return l.TxFlows.table.Load() != nil && l.RxFlows.table.Load() != nil }
		if counted() {
			t.Error("flows are counted before the first request")
		}
		_, _ = o.Flows()
		now += int64(flowsLease) - 1
		_, _ = o.Flows()
		now += int64(flowsLease) - 1
		if o.end(); !counted() {
			t.Error("counting ended early")
		}
		table := l.RxFlows.Take()
		CountFlow(table, 1, FlowID{}, 100, now)
		l.RxFlows.Put(table)
		if now++; counted() {
			o.end()
		}
		if l.TxFlows.table.Load() != nil || l.RxFlows.table.Load() != nil {
			t.Error("counting did not end")
		}
		if flows, since := o.Flows(); len(flows) != 0 || since != now {
			t.Errorf("got %d flows since %d, want none since %d", len(flows), since, now)
		}
	})
}
