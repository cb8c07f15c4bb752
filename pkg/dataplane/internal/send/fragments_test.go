// SPDX-License-Identifier: Apache-2.0

package send

import (
	"bytes"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// fragmentsOf returns an IPv4 packet in fragments, each with a virtio-net header.
func fragmentsOf(train []byte, limit int) (list [][]byte) {
	ip := bytes.Clone(train[offload.VnetHdrLen:])
	ip[6] = 0 // without DF
	for next, n := 0, 0; next < len(ip)-packet.IPv4HeaderLen; {
		b := make([]byte, offload.VnetHdrLen+limit)
		n, next = packet.WriteFragment(b[offload.VnetHdrLen:], ip, next, limit)
		list = append(list, b[:offload.VnetHdrLen+n])
	}
	return list
}

// TestFragmentsLeaveFromTheSourceOfTheirFlow sends flows of whole datagrams and fragments, also while trains are read ahead.
func TestFragmentsLeaveFromTheSourceOfTheirFlow(t *testing.T) {
	r := newRig(t)
	r.Peer.Spread.Store(lane.NewSpread([]uint8{3, 1, 4, 15, 9, 2, 6, 5}))
	bulk := flowFrom(1)
	r.carry(bulk.Train(40, 1000), flowFrom(2).Next(100), bulk.Train(40, 1000)) // from now on trains are read ahead
	r.Sent()
	used := map[int]bool{}
	r.Conn.Fail = func(run *underlay.Run) error {
		if run.Segments < 40 { // not of bulk
			used[run.Source] = true
		}
		return nil
	}
	for port := range uint16(16) {
		f := flowFrom(100 + port)
		clear(used)
		for range 10 {
			trains := append([][]byte{f.Next(600)}, fragmentsOf(f.Next(2600), 1400)...)
			r.carry(append(trains, bulk.Train(40, 1000), f.Next(600), bulk.Train(40, 1000))...)
		}
		if len(used) != 1 {
			t.Errorf("flow %d left from the sources %v, want one", port, used)
		}
	}
	if r.tx.reader.queue == nil {
		t.Error("nothing was read ahead")
	}
}

// TestFragmentsOfSprayedFlowJoinItsStream: otherwise the peer would not put them in order.
func TestFragmentsOfSprayedFlowJoinItsStream(t *testing.T) {
	f := &flow.Flow{Ends: lanetest.Out4, ID: 1}
	r := sprayed(t, f)
	r.transmit(fragmentsOf(f.Next(2600), 1400)...)
	sent := r.SentRaw()
	for i, msg := range sent {
		if !session.IsStream(wire.Counter(msg)) {
			t.Errorf("fragment %d belongs to no stream", i)
		}
	}
	if len(sent) != 2 {
		t.Errorf("got %d messages, want 2", len(sent))
	}
}
