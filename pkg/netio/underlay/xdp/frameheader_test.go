// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// referenceSum is the Internet checksum's sum as in RFC 1071, over pieces of even length (the last may be odd).
func referenceSum(pieces ...[]byte) uint16 {
	var sum uint32
	for _, b := range pieces {
		for i := 0; i < len(b); i += 2 {
			sum += uint32(b[i]) << 8
			if i+1 < len(b) {
				sum += uint32(b[i+1])
			}
			sum = sum>>16 + sum&0xffff
		}
	}
	return uint16(sum)
}

// TestChecksumsMatchReferenceSum builds frames of all kinds and sizes in turn with one runHeader, as a lane does.
func TestChecksumsMatchReferenceSum(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var s runHeader
	s.id, s.idStep = 0xfff0, 3
	for _, w := range []egress{way4, way6, tagged(way4, 5), tagged(way6, 5)} {
		headers := newFrameHeader(&w)
		for n := range 300 {
			payload := make([]byte, r.IntN(headers.max+1))
			if n < 100 {
				payload = payload[:min(n, len(payload))]
			}
			for i := range payload {
				payload[i] = byte(r.Uint32())
			}
			if n%3 == 0 {
				clear(payload)
			}
			ecn := packet.ECN(n % 4)
			s.begin(&headers, uint16(r.Uint32()), uint16(r.Uint32()), ecn, n%2 == 0)
			frame := bytes.Repeat([]byte{0xee}, 1600)
			frame = frame[:s.writeFrame(frame, payload)]
			s.complete(frame)
			checkFrame(t, &headers, frame, payload)
			if ip := packet.IPv4(frame[headers.ip:]); !headers.v6 && ip.DontFragment() != (n%2 == 0) {
				t.Fatalf("frame %d: Don't Fragment is %v", n, ip.DontFragment())
			}
		}
	}
}

func checkFrame(t *testing.T, headers *frameHeader, frame, payload []byte) {
	t.Helper()
	ip, udp := frame[headers.ip:headers.udp], frame[headers.udp:][:packet.UDPHeaderLen+len(payload)]
	addresses := ip[len(ip)-8:]
	if headers.v6 {
		addresses = ip[8:]
	} else {
		if sum := referenceSum(ip); sum != 0xffff {
			t.Fatalf("IPv4 header sums to %#x", sum)
		}
	}
	pseudo := binary.BigEndian.AppendUint32(nil, uint32(len(udp)))
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(packet.UDP))
	if sum := referenceSum(addresses, pseudo, udp); sum != 0xffff || binary.BigEndian.Uint16(udp[6:]) == 0 {
		t.Fatalf("%d bytes: UDP sums to %#x, checksum %x", len(payload), sum, udp[6:8])
	}
	if !bytes.Equal(udp[packet.UDPHeaderLen:], payload) {
		t.Fatal("another payload")
	}
	padding := frame[headers.len()+len(payload):]
	if len(frame) < minFrame || len(padding) > 0 && len(frame) != minFrame || !bytes.Equal(padding, make([]byte, len(padding))) {
		t.Fatalf("%d bytes of payload in a frame of %d, padded with % x", len(payload), len(frame), padding)
	}
}

func TestHeadersMatchKernelWireGuard(t *testing.T) {
	frame := frameOf(tagged(way4, 0x123), make([]byte, 32), packet.ECT0)
	want := []byte{
		2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0, 0x01, 0x23, 8, 0,
		0x45, 2, 0, 60, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2,
		1000 >> 8, 1000 & 0xff, 0xca, 0x6c, 0, 40,
	}
	binary.BigEndian.PutUint16(want[28:], ^referenceSum(want[18:38]))
	if got := frame[:len(want)]; !bytes.Equal(got, want) {
		t.Errorf("% x, want\n% x", got, want)
	}
	frame = frameOf(way6, make([]byte, 32), packet.CE)
	if want := []byte{0x60, 0x30, 0, 0, 0, 40, 17, 63}; !bytes.Equal(frame[14:22], want) {
		t.Errorf("got % x, want % x", frame[14:22], want)
	}
}

// TestLanesUseDistinctIPIdentifications: reassembly would mix fragments of two packets with the same identification.
func TestLanesUseDistinctIPIdentifications(t *testing.T) {
	const lanes = 3
	p := &Port{firstID: 0xfffe, table: newTable(nil)}
	seen := map[uint16]bool{}
	for i := range lanes {
		s := newSender(p, i, lanes)
		headers := newFrameHeader(&way4)
		for range 1000 {
			s.header.begin(&headers, 1, 2, 0, false)
			frame := make([]byte, 100)
			s.header.writeFrame(frame, nil)
			id := packet.IPv4(frame[14:]).ID()
			if seen[id] {
				t.Fatalf("identification %d twice", id)
			}
			seen[id] = true
		}
	}
}

func TestLargestPayloadFillsMTU(t *testing.T) {
	for _, w := range []egress{way4, way6, tagged(way4, 1), tagged(way6, 1)} {
		headers := newFrameHeader(&w)
		frame := frameOf(w, make([]byte, headers.max), 0)
		if n := len(frame) - headers.ip; n != w.mtu {
			t.Errorf("a packet of %d bytes, the MTU is %d", n, w.mtu)
		}
	}
}

func TestWriteFrameDoesNotAllocate(t *testing.T) {
	var s runHeader
	headers, frame, payload := newFrameHeader(&way6), make([]byte, 2000), make([]byte, 1400)
	if n := testing.AllocsPerRun(100, func() {
		s.begin(&headers, 1, 2, 0, false)
		s.complete(frame[:s.writeFrame(frame, payload)])
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
