// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"bytes"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

func TestOuterCongestionMarkReachesInnerPacket(t *testing.T) {
	for _, ends := range []flow.Ends{lanetest.In4, lanetest.In6} {
		for outer := packet.NotECT; outer <= packet.CE; outer++ {
			for inner := packet.NotECT; inner <= packet.CE; inner++ {
				r := newRig(t)
				sent := lanetest.Marked(ends.UDP([]byte("ping")), inner)
				want := bytes.Clone(sent)
				if outer == packet.CE && inner != packet.NotECT {
					lanetest.Marked(want, packet.CE)
				}
				r.receiveMarked(outer, sent)
				lanetest.SamePackets(t, lanetest.PacketsOf(t, r.Delivered()...), [][]byte{want})
			}
		}
	}
}

func TestCongestionMarkedPacketsMergeTogether(t *testing.T) {
	r := newRig(t)
	var sent, want [][]byte
	for i := range 4 {
		sent = append(sent, lanetest.Marked(lanetest.In4.TCP(uint32(i*100), make([]byte, 100)), packet.ECT0))
		want = append(want, lanetest.Marked(bytes.Clone(sent[i]), packet.CE))
	}
	r.receiveMarked(packet.CE, sent...)
	elements := r.Delivered()
	if len(elements) != 1 {
		t.Fatalf("got %d trains, want one train", len(elements))
	}
	for _, p := range lanetest.PacketsOf(t, elements...) {
		if packet.ECNOf(p) != packet.CE || !packet.IPv4(p).ChecksumOK() {
			t.Errorf("header % x: no mark, or a wrong checksum", p[:packet.IPv4HeaderLen])
		}
	}
	if got := lanetest.PacketsOf(t, elements...); len(got) != len(want) {
		t.Errorf("got %d packets, want %d", len(got), len(want))
	}
}

// receiveMarked runs packets of the peer's through the receiver, in outer headers with that ECN field.
func (r *rig) receiveMarked(outer packet.ECN, packets ...[]byte) {
	run, size := r.Seal(packets...)
	r.rx.in[0].ECN = outer
	r.Receive(run, size)
}
