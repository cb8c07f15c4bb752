// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// FuzzReceive gives the receiver anything that an underlay may: raw bytes at any segment size or, as a peer that knows
// the keys could, any plaintexts under valid seals. Whatever it is, each message is delivered, handed to control or
// counted, and each delivered packet has a source address of the peer.
func FuzzReceive(f *testing.F) {
	whole := lanetest.In4.UDP([]byte("payload"))
	f.Add(whole, uint16(len(whole)), true)
	f.Add(append(append([]byte{}, whole...), lanetest.In6.TCP(7, []byte("x"))...), uint16(len(whole)), true)
	f.Add(flow.Ends{Src: lanetest.Out4.Dst, Dst: lanetest.Out4.Src}.TCP(1, make([]byte, 200)), uint16(33), true)
	f.Add([]byte{}, uint16(0), false)
	f.Add(append([]byte{4, 0, 0, 0}, make([]byte, 200)...), uint16(60), false)
	f.Add(append([]byte{1, 0, 0, 0}, make([]byte, 144)...), uint16(148), false)
	r := newRig(f)
	allowed := []netip.Addr{lanetest.In4.Src.Addr(), lanetest.In6.Src.Addr()}
	f.Fuzz(func(t *testing.T, b []byte, size uint16, sealed bool) {
		r.TB = t
		run, seg := b, int(size)
		if sealed {
			run, seg = sealAll(r, b, seg)
		} else if len(b) >= 8 && b[0] == 4 {
			wire.PutDataHeader(lanetest.Pad(b, wire.DataHeaderLen), r.Keys.Local(), uint64(size)) // let it reach the cipher
		}
		run = run[:min(len(run), len(r.rx.in[0].Buf))]
		before := r.AllDrops() + uint64(len(r.Control.Messages)) + r.Lane.Stats.Rx.Packets.Load()
		r.Receive(run, seg)
		packets := lanetest.PacketsOf(t, r.Delivered()...)
		after := r.AllDrops() + uint64(len(r.Control.Messages)) + r.Lane.Stats.Rx.Packets.Load()
		if got, want := after-before, uint64(max(1, session.Messages(len(run), seg))); got != want {
			t.Errorf("%d messages became %d", want, got)
		}
		for _, p := range packets {
			if src := packet.Source(p); src != allowed[0] && src != allowed[1] {
				t.Errorf("packet from %v was delivered", src)
			}
		}
		r.Control.Messages, r.Control.From = nil, nil
	})
}

// sealAll seals b in plaintexts of size bytes, in one run as far as it fits a datagram buffer.
func sealAll(r *rig, b []byte, size int) (run []byte, seg int) {
	size = min(max(size, 1), 60000)
	seg = wire.DataOverhead + wire.PaddedLen(size, lane.DefaultMTU)
	for len(b) > 0 && len(run)+seg <= 65536 {
		n := min(size, len(b))
		run = append(run, r.Message(r.Remote, b[:n])...)
		b = b[n:]
	}
	return run, seg
}
