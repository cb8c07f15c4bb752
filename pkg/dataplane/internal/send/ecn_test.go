// SPDX-License-Identifier: Apache-2.0

package send

import (
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// outer records the ECN field of the runs that r sends.
func outer(r *rig) (fields *[]packet.ECN) {
	fields = new([]packet.ECN)
	r.Conn.Fail = func(run *underlay.Run) error {
		*fields = append(*fields, run.ECN)
		return nil
	}
	return fields
}

func TestOuterHeaderCarriesInnerECN(t *testing.T) {
	for inner, want := range map[packet.ECN]packet.ECN{
		packet.NotECT: packet.NotECT, packet.ECT1: packet.ECT1, packet.ECT0: packet.ECT0, packet.CE: packet.ECT0,
	} {
		for _, ends := range []flow.Ends{lanetest.Out4, lanetest.Out6} {
			r := newRig(t)
			fields := outer(r)
			single := lanetest.MarkedElement(flow.WithVnetHeader(ends.UDP([]byte("one"))), inner)
			train := lanetest.MarkedElement(ends.TCPTrain(0, 100, make([]byte, 9050)), inner) // two runs
			elements := [][]byte{single, train}
			want := []packet.ECN{want, want, want}
			r.transmit(elements...)
			if !slices.Equal(*fields, want) {
				t.Errorf("inner %d: outer %d, want %d", inner, *fields, want)
			}
			lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), lanetest.PacketsOf(t, elements...))
		}
	}
}

func TestRunHoldsOneECNValue(t *testing.T) {
	r := newRig(t)
	fields := outer(r)
	f := flow.Flow{Ends: lanetest.Out4}
	var elements [][]byte
	for _, ecn := range []packet.ECN{0, 0, packet.ECT0, packet.CE, packet.ECT1, 0, 0} {
		elements = append(elements, lanetest.MarkedElement(f.Next(100), ecn))
	}
	r.transmit(elements...)
	if want := []packet.ECN{0, packet.ECT0, packet.ECT1, 0}; !slices.Equal(*fields, want) {
		t.Errorf("runs of ECN %d, want %d", *fields, want)
	}
	lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), lanetest.PacketsOf(t, elements...))
}

// TestKeepalivesCarryNoECN: the slot that a keepalive is made in still holds the packet before it.
func TestKeepalivesCarryNoECN(t *testing.T) {
	r := newRig(t)
	fields := outer(r)
	r.tx.out.now = r.Now
	copy(r.tx.out.batch.bufs[0], lanetest.MarkedElement(flow.WithVnetHeader(lanetest.Out4.UDP([]byte("old"))), packet.ECT0))
	r.tx.enqueueSingle(r.tx.out.batch.slots[0], 0, r.Peer, r.Keys, 0)
	r.tx.out.flush()
	if want := []packet.ECN{0}; !slices.Equal(*fields, want) {
		t.Errorf("ECN %d, want %d", *fields, want)
	}
}
