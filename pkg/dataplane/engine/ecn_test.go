// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// marked gives an IP packet that ECN field, and IPv4 a right checksum.
func marked(ip []byte, ecn packet.ECN) []byte {
	if ip[0]>>4 == 6 {
		ip[1] = ip[1]&^0x30 | byte(ecn)<<4
		return ip
	}
	ip[1] = ip[1]&^3 | byte(ecn)
	h := packet.IPv4(ip)
	h.SetChecksum(0)
	h.SetChecksum(packet.Checksum(h[:packet.IPv4HeaderLen]))
	return ip
}

// markedElement sets the mark in the packet of a train.
func markedElement(element []byte, ecn packet.ECN) []byte {
	marked(element[offload.VnetHdrLen:], ecn)
	return element
}

// outer records the ECN field of the runs that r sends.
func outer(r *rig) (fields *[]packet.ECN) {
	fields = new([]packet.ECN)
	r.conn.fail = func(run *underlay.Run) error {
		*fields = append(*fields, run.ECN)
		return nil
	}
	return fields
}

func TestOuterHeaderCarriesInnerECN(t *testing.T) {
	for inner, want := range map[packet.ECN]packet.ECN{
		packet.NotECT: packet.NotECT, packet.ECT1: packet.ECT1, packet.ECT0: packet.ECT0, packet.CE: packet.ECT0,
	} {
		for _, ends := range []flow.Ends{out4, out6} {
			r := newRig(t)
			fields := outer(r)
			single := markedElement(flow.WithVnetHeader(ends.UDP([]byte("one"))), inner)
			train := markedElement(ends.TCPTrain(0, 100, make([]byte, 9050)), inner) // two runs
			elements := [][]byte{single, train}
			want := []packet.ECN{want, want, want}
			r.transmit(elements...)
			if !slices.Equal(*fields, want) {
				t.Errorf("inner %d: outer %d, want %d", inner, *fields, want)
			}
			samePackets(t, unpadded(t, r.sent()), packetsOf(t, elements...))
		}
	}
}

func TestRunHoldsOneECNValue(t *testing.T) {
	r := newRig(t)
	fields := outer(r)
	f := flow.Flow{Ends: out4}
	var elements [][]byte
	for _, ecn := range []packet.ECN{0, 0, packet.ECT0, packet.CE, packet.ECT1, 0, 0} {
		elements = append(elements, markedElement(f.Next(100), ecn))
	}
	r.transmit(elements...)
	if want := []packet.ECN{0, packet.ECT0, packet.ECT1, 0}; !slices.Equal(*fields, want) {
		t.Errorf("runs of ECN %d, want %d", *fields, want)
	}
	samePackets(t, unpadded(t, r.sent()), packetsOf(t, elements...))
}

// TestKeepalivesCarryNoECN: the slot that a keepalive is made in still holds the packet before it.
func TestKeepalivesCarryNoECN(t *testing.T) {
	r := newRig(t)
	fields := outer(r)
	r.tx.now = r.now
	copy(r.tx.bufs[0], markedElement(flow.WithVnetHeader(out4.UDP([]byte("old"))), packet.ECT0))
	r.tx.enqueueSingle(r.tx.slots[0], 0, r.peer, r.keys, 0)
	r.tx.flush()
	if want := []packet.ECN{0}; !slices.Equal(*fields, want) {
		t.Errorf("ECN %d, want %d", *fields, want)
	}
}

func TestOuterCongestionMarkReachesInnerPacket(t *testing.T) {
	for _, ends := range []flow.Ends{in4, in6} {
		for outer := packet.NotECT; outer <= packet.CE; outer++ {
			for inner := packet.NotECT; inner <= packet.CE; inner++ {
				r := newRig(t)
				sent := marked(ends.UDP([]byte("ping")), inner)
				want := bytes.Clone(sent)
				if outer == packet.CE && inner != packet.NotECT {
					marked(want, packet.CE)
				}
				r.receiveMarked(outer, sent)
				samePackets(t, packetsOf(t, r.delivered()...), [][]byte{want})
			}
		}
	}
}

func TestCongestionMarkedPacketsMergeTogether(t *testing.T) {
	r := newRig(t)
	var sent, want [][]byte
	for i := range 4 {
		sent = append(sent, marked(in4.TCP(uint32(i*100), make([]byte, 100)), packet.ECT0))
		want = append(want, marked(bytes.Clone(sent[i]), packet.CE))
	}
	r.receiveMarked(packet.CE, sent...)
	elements := r.delivered()
	if len(elements) != 1 {
		t.Fatalf("got %d trains, want one train", len(elements))
	}
	for _, p := range packetsOf(t, elements...) {
		if packet.ECNOf(p) != packet.CE || !packet.IPv4(p).ChecksumOK() {
			t.Errorf("header % x: no mark, or a wrong checksum", p[:packet.IPv4HeaderLen])
		}
	}
	if got := packetsOf(t, elements...); len(got) != len(want) {
		t.Errorf("got %d packets, want %d", len(got), len(want))
	}
}

// receiveMarked runs packets of the peer's through the receiver, in outer headers with that ECN field.
func (r *rig) receiveMarked(outer packet.ECN, packets ...[]byte) {
	run, size := r.seal(packets...)
	r.rx.in[0].ECN = outer
	r.receive(run, size)
}
