// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

func TestReceivedFlowsAreCounted(t *testing.T) {
	r := newRig(t)
	r.Observed()
	r.Now += int64(time.Second)
	run, size := r.Seal(lanetest.In4.TCP(0, make([]byte, 600)), lanetest.In4.TCP(600, make([]byte, 600)))
	r.ReceiveFrom(lanetest.FromPort(1234), run, size)
	r.WantFlows(lane.FlowStats{
		Flow: packet.Flow{Source: lanetest.In4.Src, Destination: lanetest.In4.Dst, Protocol: packet.TCP}, Received: true, FlowCounters: lane.FlowCounters{
			Packets: 2, Bytes: 2 * (20 + 20 + 600), First: r.Now, Last: r.Now, Port: 1234,
		},
	})
	if r.rx.observed != nil {
		t.Error("the lane keeps the addresses of flows")
	}
}

// TestFlowsHaveMarksAndDropsOfReceiveQueue runs in a bubble, in which the engine's timer never fires: on a slow machine it would read the
// test's clock.
func TestFlowsHaveMarksAndDropsOfReceiveQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ecn := range []packet.ECN{packet.NotECT, packet.ECT0} {
			r := newRig(t)
			_, _ = r.Flows.Flows()
			r.standing(ecn)
			flows, sum := r.Observed()
			want := lane.FlowCounters{Marks: r.Lane.Snapshot().RxMarks, Drops: r.Drops(drop.RXCongestion)}
			if sum.Marks != want.Marks || sum.Drops != want.Drops || want.Marks+want.Drops == 0 {
				t.Errorf("ECN %d: got %+v, want %d marks and %d drops", ecn, flows, want.Marks, want.Drops)
			}
		}
	})
}

// TestUnopenedDropsAreCountedByPort also runs in a bubble.
func TestUnopenedDropsAreCountedByPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		_, _ = r.Flows.Flows()
		r.Peer.Gathered.Store(&spread.Ports{First: 1000, Last: 1001})
		for range rxBytes / 65536 {
			r.put(0, lanetest.FromPort(1000), 'f', 45)
			r.rx.admit(0)
		}
		flows, sum := r.Observed()
		if len(flows) != 1 || flows[0].Port != 1000 || flows[0].Flow != (packet.Flow{}) || sum.Drops != r.Drops(drop.RXQueueFull) {
			t.Errorf("got %+v, want %d drops of unknown flows from port 1000", flows, r.Drops(drop.RXQueueFull))
		}
	})
}

// TestLaneReceivesWhileFlowsAreRead: a reader has the table.
func TestLaneReceivesWhileFlowsAreRead(t *testing.T) {
	r := newRig(t)
	_, _ = r.Flows.Flows()
	table := r.Lane.RxFlows.Wait()
	run, size := r.Seal(lanetest.In4.UDP(make([]byte, 100)))
	r.Receive(run, size)
	if delivered := len(r.Delivered()); delivered != 1 {
		t.Errorf("%d packets were delivered, want 1", delivered)
	}
	r.Lane.RxFlows.Put(table)
}
