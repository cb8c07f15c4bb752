// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

const testPort = 51820

var (
	way4 = egress{
		from: mac{2, 0, 0, 0, 0, 1}, to: mac{2, 0, 0, 0, 0, 2}, src: netip.MustParseAddr("192.0.2.1"), dst: netip.MustParseAddr("192.0.2.2"),
		mtu: 1500, hops: 64,
	}
	way6 = egress{
		from: mac{2, 0, 0, 0, 0, 1}, to: mac{2, 0, 0, 0, 0, 2}, src: netip.MustParseAddr("2001:db8::1"), dst: netip.MustParseAddr("2001:db8::2"),
		mtu: 1500, hops: 63,
	}
)

func tagged(w egress, vlan uint16) egress {
	w.tagged, w.vlan = true, vlan
	return w
}

// frameOf builds a frame as a lane does.
func frameOf(w egress, payload []byte, ecn packet.ECN) []byte {
	var s runHeader
	headers := newFrameHeader(&w)
	s.begin(&headers, 1000, testPort, ecn, false)
	frame := make([]byte, 2000)
	frame = frame[:s.writeFrame(frame, payload)]
	s.complete(frame)
	return frame
}

func TestParsedFrameMatchesWrittenFrame(t *testing.T) {
	for _, w := range []egress{way4, way6, tagged(way4, 7), tagged(way6, 4094)} {
		for _, n := range []int{0, 1, 17, 18, 32, 1400, w.mtu - 48} {
			for _, ecn := range []packet.ECN{packet.NotECT, packet.ECT1, packet.ECT0, packet.CE} {
				payload := bytes.Repeat([]byte{byte(n)}, n)
				f, got, ok := parseFrame(frameOf(w, payload, ecn), testPort)
				e := f.endpoint(9)
				if !ok || !bytes.Equal(got, payload) || f.ecn != ecn || e.Src != w.dst || e.Dst != netip.AddrPortFrom(w.src, 1000) || e.Scope != 0 {
					t.Errorf("%+v, %d bytes, ECN %d: %+v, %d bytes, %v", w, n, ecn, e, len(got), ok)
				}
			}
		}
	}
}

func TestLinkLocalSendersHaveAScope(t *testing.T) {
	w := way6
	w.src = netip.MustParseAddr("fe80::1")
	f, _, ok := parseFrame(frameOf(w, []byte("x"), 0), testPort)
	if e := f.endpoint(9); !ok || e.Scope != 9 || e.Dst.Addr().Zone() != "" {
		t.Errorf("got %+v, %v, want true", e, ok)
	}
}

// TestParserAcceptsOnlyWholeDatagramsForPort changes one field at a time.
func TestParserAcceptsOnlyWholeDatagramsForPort(t *testing.T) {
	payload := make([]byte, 100)
	put16 := func(at int, v uint16) func([]byte) []byte {
		return func(b []byte) []byte { binary.BigEndian.PutUint16(b[at:], v); return b }
	}
	put := func(at int, v byte) func([]byte) []byte { return func(b []byte) []byte { b[at] = v; return b } }
	for _, c := range []struct {
		name   string
		egress egress
		change func([]byte) []byte
		ok     bool
	}{
		{"IPv4", way4, put(0, 9), true},
		{"IPv6", way6, put(0, 9), true},
		{"padding", way4, func(b []byte) []byte { return append(b, 0, 0) }, true},
		{"padding of IPv6", way6, func(b []byte) []byte { return append(b, 0, 0) }, true},
		{"another EtherType", way4, put16(12, 0x0806), false},
		{"IPv6 said, IPv4 there", way4, put16(12, 0x86dd), false},
		{"IPv4 said, IPv6 there", way6, put16(12, 0x0800), false},
		{"another version", way4, put(14, 0x55), false},
		{"a header too short", way4, put(14, 0x44), false},
		{"a header that is longer than said", way4, put(14, 0x46), false},
		{"total length beyond the frame", way4, put16(16, 129), false},
		{"total length below UDP's", way4, put16(16, 127), false},
		{"the first fragment", way4, put16(20, 0x2000), false},
		{"a later fragment", way4, put16(20, 1), false},
		{"DF", way4, put16(20, 0x4000), true},
		{"TCP", way4, put(23, 6), false},
		{"another port", way4, put16(36, testPort+1), false},
		{"UDP length too long", way4, put16(38, 109), false},
		{"UDP length too short", way4, put16(38, 107), false},
		{"UDP length below its header", way4, put16(38, 7), false},
		{"payload length beyond the frame", way6, put16(18, 109), false},
		{"an extension header", way6, put(20, 0), false},
		{"a fragment header", way6, put(20, 44), false},
		{"another port of IPv6", way6, put16(56, testPort+1), false},
		{"cut short", way4, func(b []byte) []byte { return b[:len(b)-1] }, false},
		{"cut in the UDP header", way4, func(b []byte) []byte { return b[:40] }, false},
		{"cut in the IP header", way6, func(b []byte) []byte { return b[:50] }, false},
		{"cut in the Ethernet header", way6, func(b []byte) []byte { return b[:13] }, false},
		{"a tag", tagged(way4, 1), put(0, 9), true},
		{"a service tag", tagged(way6, 1), put16(12, 0x88a8), true},
		{"cut in the tag", tagged(way4, 1), func(b []byte) []byte { return b[:17] }, false},
		{"nothing", way4, func(b []byte) []byte { return nil }, false},
	} {
		f, got, ok := parseFrame(c.change(frameOf(c.egress, payload, 0)), testPort)
		if ok != c.ok || ok && len(got) != len(payload) || !ok && (got != nil || f != flow{}) {
			t.Errorf("%s: got %v, %d bytes, want %v", c.name, ok, len(got), c.ok)
		}
	}
}

func TestParserAcceptsAtMostTwoVLANTags(t *testing.T) {
	frame := frameOf(tagged(way4, 1), []byte("payload"), 0)
	tag := []byte{0x88, 0xa8, 0, 2}
	twice := append(append(bytes.Clone(frame[:12]), tag...), frame[12:]...)
	thrice := append(append(bytes.Clone(frame[:12]), append(tag, tag...)...), frame[12:]...)
	if _, got, ok := parseFrame(twice, testPort); !ok || string(got) != "payload" {
		t.Errorf("two tags: got %q, %v, want true", got, ok)
	}
	if _, _, ok := parseFrame(thrice, testPort); ok {
		t.Error("three tags were read")
	}
}

// FuzzParseFrame checks that an accepted payload lies within the frame and has the length of both headers. A frame
// built from it must parse to the same result.
func FuzzParseFrame(f *testing.F) {
	for _, w := range []egress{way4, way6, tagged(way4, 7), tagged(way6, 7)} {
		f.Add(frameOf(w, []byte("payload"), packet.CE))
		f.Add(frameOf(w, make([]byte, 100), 0)[:60])
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		of, payload, ok := parseFrame(frame, testPort)
		if !ok {
			if payload != nil {
				t.Fatal("a payload without a valid frame")
			}
			return
		}
		if !bytes.Contains(frame, payload) || len(payload) > len(frame)-ethernetLen-packet.IPv4HeaderLen-packet.UDPHeaderLen {
			t.Fatalf("%d bytes of payload in a frame of %d", len(payload), len(frame))
		}
		e := of.endpoint(1)
		w := egress{src: e.Dst.Addr(), dst: e.Src, mtu: 65535, hops: 1}
		var s runHeader
		headers := newFrameHeader(&w)
		s.begin(&headers, e.Dst.Port(), testPort, of.ecn, false)
		again := make([]byte, 66000)
		again = again[:s.writeFrame(again, payload)]
		s.complete(again)
		of2, payload2, ok := parseFrame(again, testPort)
		if !ok || of2 != of || !bytes.Equal(payload, payload2) {
			t.Fatalf("%+v became %+v", of, of2)
		}
	})
}
