// SPDX-License-Identifier: Apache-2.0

package send

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

func TestSentFlowsAreCounted(t *testing.T) {
	r := newRig(t)
	r.Observed()
	r.Peer.Spread.Store(lane.NewSpread([]uint8{7}))
	r.transmit(flow.WithVnetHeader(lanetest.Out6.UDP(make([]byte, 100))), lanetest.Out4.TCPTrain(0, 500, make([]byte, 2000)))
	r.WantFlows(
		lane.FlowStats{Flow: packet.Flow{Source: lanetest.Out6.Src, Destination: lanetest.Out6.Dst, Protocol: packet.UDP}, FlowCounters: lane.FlowCounters{
			Packets: 1, Bytes: 40 + 8 + 100, First: r.Now, Last: r.Now, Source: 7,
		}},
		lane.FlowStats{Flow: packet.Flow{Source: lanetest.Out4.Src, Destination: lanetest.Out4.Dst, Protocol: packet.TCP}, FlowCounters: lane.FlowCounters{
			Packets: 4, Bytes: 4*(20+20) + 2000, First: r.Now, Last: r.Now, Source: 7,
		}},
	)
}

func TestFlowsHaveMarksAndDropsOfTransmitQueue(t *testing.T) {
	for _, ecn := range []packet.ECN{packet.NotECT, packet.ECT0} {
		r, b := slowRig(t, 0)
		_, _ = r.Flows.Flows()
		r.standingTX(b, ecn)
		flows, sum := r.Observed()
		want := lane.FlowCounters{Marks: r.Lane.Snapshot().TxMarks, Drops: r.Drops(drop.TXCongestion) + r.Drops(drop.TXQueueFull)}
		if len(flows) != 1 || sum.Marks != want.Marks || sum.Drops != want.Drops || want.Marks+want.Drops == 0 {
			t.Errorf("ECN %d: got %+v, want 1 flow with %d marks and %d drops", ecn, flows, want.Marks, want.Drops)
		}
		if sent := r.Lane.Snapshot().TxPackets; len(flows) == 1 && (flows[0].Packets != sent || sent == 0) {
			t.Errorf("ECN %d: the flow has %d packets, the lane sent %d", ecn, flows[0].Packets, sent)
		}
	}
}

func TestOversizePacketsAreDropsOfTheirFlow(t *testing.T) {
	r := newRig(t)
	r.Peer.SetPathMTU(1000)
	_, _ = r.Flows.Flows()
	r.transmit(flow.WithVnetHeader(lanetest.Out4.UDP(make([]byte, 1300))))
	r.transmit(withoutDF(flow.WithVnetHeader(lanetest.Out4.UDP(make([]byte, 1300)))))
	flows, sum := r.Observed()
	if len(flows) != 1 || flows[0].Packets != 1 || flows[0].Bytes != 1328 || sum.Drops != 1 {
		t.Errorf("got %+v, want 1 flow with 1 packet of 1328 bytes and 1 drop", flows)
	}
}

// TestLaneSendsWhileFlowsAreRead: a reader has the table.
func TestLaneSendsWhileFlowsAreRead(t *testing.T) {
	r := newRig(t)
	_, _ = r.Flows.Flows()
	table := r.Lane.TxFlows.Wait()
	r.transmit((&flow.Flow{Ends: lanetest.Out4}).Train(10, 500))
	if sent := len(r.Sent()); sent != 10 {
		t.Errorf("%d packets were sent, want 10", sent)
	}
	r.Lane.TxFlows.Put(table)
}
