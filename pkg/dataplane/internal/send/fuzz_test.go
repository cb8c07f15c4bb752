// SPDX-License-Identifier: Apache-2.0

package send

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// FuzzTransmit gives the transmitter anything that a TUN may: any virtio-net header before any bytes. Whatever it is,
// every message that is sent opens at the peer, holds a packet with a right length, and all others are counted.
func FuzzTransmit(f *testing.F) {
	for _, e := range [][]byte{
		flow.WithVnetHeader(lanetest.Out4.UDP([]byte("payload"))), lanetest.Out4.TCPTrain(1, 100, make([]byte, 450)),
		lanetest.Out6.TCPTrain(1, 100, make([]byte, 450)), lanetest.Out4.UDPTrain(50, make([]byte, 100)), lanetest.Out6.UDPTrain(1, make([]byte, 100)),
	} {
		f.Add(e, uint16(lane.DefaultMTU))
	}
	f.Add([]byte{}, uint16(0))
	r := newRig(f)
	f.Fuzz(func(t *testing.T, element []byte, mtu uint16) {
		r.TB, r.Conn.TB = t, t
		r.Shared.MTU.Store(int64(int(mtu)))
		before := r.AllDrops()
		r.transmit(element[:min(len(element), len(r.tx.out.batch.bufs[0]))])
		plain := lanetest.Unpadded(t, r.Sent())
		drops := r.AllDrops() - before
		if len(plain) == 0 && drops == 0 {
			t.Error("the train was neither sent nor counted as dropped")
		}
		if len(plain) > 0 && drops > 0 {
			t.Errorf("%d packets sent and %d dropped", len(plain), drops)
		}
		for _, p := range plain {
			if dst := packet.Destination(p); dst != lanetest.Out4.Dst.Addr() && dst != lanetest.Out6.Dst.Addr() {
				t.Errorf("packet to %v was sent", dst)
			}
		}
		wantTrain(t, element, plain)
	})
}

// wantTrain compares the sent packets with the train's header.
func wantTrain(t *testing.T, element []byte, plain [][]byte) {
	if len(plain) == 0 || len(element) <= offload.VnetHdrLen {
		return
	}
	var h offload.VnetHdr
	var train offload.Train
	h.Decode(element)
	if r := train.Parse(h, element[offload.VnetHdrLen:]); r != drop.None {
		t.Fatalf("an invalid train was sent: got %v, want %v", r, drop.None)
	}
	if len(plain) != train.Segments() {
		t.Errorf("got %d packets sent, want %d", len(plain), train.Segments())
	}
}
