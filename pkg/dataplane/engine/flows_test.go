// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// observed returns the flows that the engine counts, and sums of their counters.
func (r *rig) observed() (flows []FlowStats, sum FlowCounters) {
	flows, _ = r.engine.Flows()
	for _, f := range flows {
		sum.Packets += f.Packets
		sum.Marks += f.Marks
		sum.Drops += f.Drops
	}
	return flows, sum
}

func TestFlowsAreCountedInBothDirections(t *testing.T) {
	r := newRig(t)
	r.observed()
	began := r.now
	r.peer.Spread.Store(NewSpread([]uint8{7}))
	r.transmit(flow.WithVnetHeader(out6.UDP(make([]byte, 100))), out4.TCPTrain(0, 500, make([]byte, 2000)))
	r.now += int64(time.Second)
	run, size := r.seal(in4.TCP(0, make([]byte, 600)), in4.TCP(600, make([]byte, 600)))
	r.receiveFrom(fromPort(1234), run, size)
	flows, _ := r.observed()
	want := []FlowStats{
		{Flow: packet.Flow{Source: out6.Src, Destination: out6.Dst, Protocol: packet.UDP}, FlowCounters: FlowCounters{
			Packets: 1, Bytes: 40 + 8 + 100, First: began, Last: began, Source: 7,
		}},
		{Flow: packet.Flow{Source: out4.Src, Destination: out4.Dst, Protocol: packet.TCP}, FlowCounters: FlowCounters{
			Packets: 4, Bytes: 4*(20+20) + 2000, First: began, Last: began, Source: 7,
		}},
		{Flow: packet.Flow{Source: in4.Src, Destination: in4.Dst, Protocol: packet.TCP}, Received: true, FlowCounters: FlowCounters{
			Packets: 2, Bytes: 2 * (20 + 20 + 600), First: r.now, Last: r.now, Port: 1234,
		}},
	}
	options := []cmp.Option{
		cmpopts.IgnoreFields(FlowStats{}, "Peer"), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
		cmpopts.SortSlices(func(a, b FlowStats) bool { return a.Bytes < b.Bytes }),
	}
	if diff := cmp.Diff(want, flows, options...); diff != "" {
		t.Errorf("flows (-want +got): %s", diff)
	}
	for _, f := range flows {
		if f.Peer != r.peer {
			t.Errorf("%v has peer %p, want %p", f.Flow, f.Peer, r.peer)
		}
	}
}

func TestFlowsHaveMarksAndDropsOfTransmitQueue(t *testing.T) {
	for _, ecn := range []packet.ECN{packet.NotECT, packet.ECT0} {
		r, b := slowRig(t, 0)
		_, _ = r.engine.Flows()
		r.standingTX(b, ecn)
		flows, sum := r.observed()
		want := FlowCounters{Marks: r.engine.Stats().Lanes[0].TxMarks, Drops: r.drops(drop.TXCongestion) + r.drops(drop.TXQueueFull)}
		if len(flows) != 1 || sum.Marks != want.Marks || sum.Drops != want.Drops || want.Marks+want.Drops == 0 {
			t.Errorf("ECN %d: got %+v, want 1 flow with %d marks and %d drops", ecn, flows, want.Marks, want.Drops)
		}
		if sent := r.engine.Stats().Lanes[0].TxPackets; len(flows) == 1 && (flows[0].Packets != sent || sent == 0) {
			t.Errorf("ECN %d: the flow has %d packets, the lane sent %d", ecn, flows[0].Packets, sent)
		}
	}
}

func TestOversizePacketsAreDropsOfTheirFlow(t *testing.T) {
	r := newRig(t)
	r.peer.SetPathMTU(1000)
	_, _ = r.engine.Flows()
	r.transmit(flow.WithVnetHeader(out4.UDP(make([]byte, 1300))))
	r.transmit(withoutDF(flow.WithVnetHeader(out4.UDP(make([]byte, 1300)))))
	flows, sum := r.observed()
	if len(flows) != 1 || flows[0].Packets != 1 || flows[0].Bytes != 1328 || sum.Drops != 1 {
		t.Errorf("got %+v, want 1 flow with 1 packet of 1328 bytes and 1 drop", flows)
	}
}

// TestFlowsHaveMarksAndDropsOfReceiveQueue runs in a bubble, in which the engine's timer never fires: on a slow machine it would read the
// test's clock.
func TestFlowsHaveMarksAndDropsOfReceiveQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ecn := range []packet.ECN{packet.NotECT, packet.ECT0} {
			r := newRig(t)
			_, _ = r.engine.Flows()
			r.standing(ecn)
			flows, sum := r.observed()
			want := FlowCounters{Marks: r.engine.Stats().Lanes[0].RxMarks, Drops: r.drops(drop.RXCongestion)}
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
		_, _ = r.engine.Flows()
		r.peer.Gathered.Store(&spread.Ports{First: 1000, Last: 1001})
		for range rxBytes / 65536 {
			r.put(0, fromPort(1000), 'f', 45)
			r.rx.admit(0)
		}
		flows, sum := r.observed()
		if len(flows) != 1 || flows[0].Port != 1000 || flows[0].Flow != (packet.Flow{}) || sum.Drops != r.drops(drop.RXQueueFull) {
			t.Errorf("got %+v, want %d drops of unknown flows from port 1000", flows, r.drops(drop.RXQueueFull))
		}
	})
}

// TestCountingEndsAfterLastRequest runs in a bubble, in which the engine's own timer never fires: the test takes its part.
func TestCountingEndsAfterLastRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		f := flow.Flow{Ends: out4}
		r.transmit(f.Next(100))
		if flows, _ := r.observed(); len(flows) != 0 {
			t.Errorf("got %d flows before the first request, want 0", len(flows))
		}
		r.now += int64(flowsLease) - 1
		_, _ = r.engine.Flows()
		r.now += int64(flowsLease) - 1
		r.engine.endFlows()
		if r.tx.lane.txFlows.table.Load() == nil {
			t.Error("counting ended early")
		}
		run, size := r.seal(in4.TCP(0, make([]byte, 100)))
		r.receive(run, size)
		r.now++
		r.engine.endFlows()
		if r.tx.lane.txFlows.table.Load() != nil || r.tx.lane.rxFlows.table.Load() != nil || r.rx.observed != nil {
			t.Error("counting did not end, or a lane keeps the addresses of flows")
		}
		if flows, since := r.engine.Flows(); len(flows) != 0 || since != r.now {
			t.Errorf("got %d flows since %d, want none since %d", len(flows), since, r.now)
		}
	})
}

// TestLanesDoNotWaitForReader holds all that a reader of the flows can hold, in the goroutine of the lane.
func TestLanesDoNotWaitForReader(t *testing.T) {
	r := newRig(t)
	_, _ = r.engine.Flows()
	r.engine.observer.mu.Lock()
	defer r.engine.observer.mu.Unlock()
	l := r.tx.lane
	tx, rx := l.txFlows.wait(), l.rxFlows.wait()
	f := flow.Flow{Ends: out4}
	r.transmit(f.Train(10, 500))
	run, size := r.seal(in4.UDP(make([]byte, 100)))
	r.receive(run, size)
	if sent, delivered := len(r.sent()), len(r.delivered()); sent != 10 || delivered != 1 {
		t.Errorf("%d packets were sent and %d delivered, want 10 and 1", sent, delivered)
	}
	l.txFlows.put(tx)
	l.rxFlows.put(rx)
}
