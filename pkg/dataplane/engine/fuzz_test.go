// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// FuzzReceive gives the receiver anything that an underlay may: raw bytes at any segment size or, as a peer that knows
// the keys could, any plaintexts under valid seals. Whatever it is, each message is delivered, handed to control or
// counted, and each delivered packet has a source address of the peer.
func FuzzReceive(f *testing.F) {
	whole := in4.UDP([]byte("payload"))
	f.Add(whole, uint16(len(whole)), true)
	f.Add(append(append([]byte{}, whole...), in6.TCP(7, []byte("x"))...), uint16(len(whole)), true)
	f.Add(flow.Ends{Src: out4.Dst, Dst: out4.Src}.TCP(1, make([]byte, 200)), uint16(33), true)
	f.Add([]byte{}, uint16(0), false)
	f.Add(append([]byte{4, 0, 0, 0}, make([]byte, 200)...), uint16(60), false)
	f.Add(append([]byte{1, 0, 0, 0}, make([]byte, 144)...), uint16(148), false)
	r := newRig(f)
	allowed := []netip.Addr{in4.Src.Addr(), in6.Src.Addr()}
	f.Fuzz(func(t *testing.T, b []byte, size uint16, sealed bool) {
		r.tb = t
		run, seg := b, int(size)
		if sealed {
			run, seg = sealAll(r, b, seg)
		} else if len(b) >= 8 && b[0] == 4 {
			wire.PutDataHeader(pad(b, wire.DataHeaderLen), r.keys.Local(), uint64(size)) // let it reach the cipher
		}
		run = run[:min(len(run), len(r.rx.in[0].Buf))]
		before := r.allDrops() + uint64(len(r.control.messages)) + r.engine.lanes[0].stats.rx.packets.Load()
		r.receive(run, seg)
		packets := packetsOf(t, r.delivered()...)
		after := r.allDrops() + uint64(len(r.control.messages)) + r.engine.lanes[0].stats.rx.packets.Load()
		if got, want := after-before, uint64(max(1, session.Messages(len(run), seg))); got != want {
			t.Errorf("%d messages became %d", want, got)
		}
		for _, p := range packets {
			if src := packet.Source(p); src != allowed[0] && src != allowed[1] {
				t.Errorf("packet from %v was delivered", src)
			}
		}
		r.control.messages, r.control.from = nil, nil
	})
}

// sealAll seals b in plaintexts of size bytes, in one run as far as it fits a datagram buffer.
func sealAll(r *rig, b []byte, size int) (run []byte, seg int) {
	size = min(max(size, 1), 60000)
	seg = wire.DataOverhead + wire.PaddedLen(size, DefaultMTU)
	for len(b) > 0 && len(run)+seg <= 65536 {
		n := min(size, len(b))
		run = append(run, r.message(r.remote, b[:n])...)
		b = b[n:]
	}
	return run, seg
}

// FuzzTransmit gives the transmitter anything that a TUN may: any virtio-net header before any bytes. Whatever it is,
// every message that is sent opens at the peer, holds a packet with a right length, and all others are counted.
func FuzzTransmit(f *testing.F) {
	for _, e := range [][]byte{
		flow.WithVnetHeader(out4.UDP([]byte("payload"))), out4.TCPTrain(1, 100, make([]byte, 450)),
		out6.TCPTrain(1, 100, make([]byte, 450)), out4.UDPTrain(50, make([]byte, 100)), out6.UDPTrain(1, make([]byte, 100)),
	} {
		f.Add(e, uint16(DefaultMTU))
	}
	f.Add([]byte{}, uint16(0))
	r := newRig(f)
	f.Fuzz(func(t *testing.T, element []byte, mtu uint16) {
		r.tb, r.conn.tb = t, t
		r.engine.SetMTU(int(mtu))
		before := r.allDrops()
		r.transmit(element[:min(len(element), len(r.tx.bufs[0]))])
		plain := unpadded(t, r.sent())
		drops := r.allDrops() - before
		if len(plain) == 0 && drops == 0 {
			t.Error("the train was neither sent nor counted as dropped")
		}
		if len(plain) > 0 && drops > 0 {
			t.Errorf("%d packets sent and %d dropped", len(plain), drops)
		}
		for _, p := range plain {
			if dst := packet.Destination(p); dst != out4.Dst.Addr() && dst != out6.Dst.Addr() {
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
