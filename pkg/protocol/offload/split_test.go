// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"bytes"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

func diff(t testing.TB, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d packets, want %d", len(got), len(want))
	}
	for i := range got {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("packet %d:\n% x\nwant\n% x", i, got[i][:min(100, len(got[i]))], want[i][:min(100, len(want[i]))])
		}
	}
}

var trains = []struct {
	name string
	spec spec
	size int
	len  int
}{
	{"TCPv4", spec{id: 7, df: true, seq: 1000}, 1380, 5 * 1380},
	{"TCPv4 short last", spec{id: 7, seq: 1000}, 1380, 5*1380 + 1},
	{"TCPv4 ID and sequence wrap", spec{id: 0xfffe, seq: 0xfffffff0}, 100, 1000},
	{"TCPv4 FIN, PSH and CWR", spec{flags: packet.ACK | packet.FIN | packet.PSH | packet.CWR | packet.ECE}, 100, 350},
	{"TCPv4 options", spec{options: bytes.Repeat([]byte{1}, 12), ipOpts: []byte{7, 3, 4, 0}}, 99, 1000},
	{"TCPv4 most options", spec{options: bytes.Repeat([]byte{1}, 40), ipOpts: bytes.Repeat([]byte{1}, 40)}, 99, 1000},
	{"TCPv4 one byte each", spec{tos: 3}, 1, 70},
	{"TCPv4 largest", spec{df: true}, 1380, 65535 - 40},
	{"TCPv6", spec{v6: true, seq: 9, options: bytes.Repeat([]byte{1}, 12)}, 1360, 10000},
	{"TCPv6 extension header", spec{v6: true, ipOpts: []byte{0, 0, 1, 4, 0, 0, 0, 0}}, 1360, 10000},
	{"TCPv6 FIN", spec{v6: true, flags: packet.FIN | packet.ACK, tos: 0xb9}, 1000, 1999},
	{"UDPv4", spec{udp: true, id: 0xffff}, 1200, 5000},
	{"UDPv6", spec{v6: true, udp: true}, 1200, 6000},
	{"UDPv4 odd sizes", spec{udp: true, df: true}, 333, 1000},
	{"UDPv4 128 segments", spec{udp: true}, 100, 12800},
	{"not more than one segment", spec{udp: true}, 1200, 1200},
	{"no payload", spec{}, 1200, 0},
}

func TestSplitMatchesOracle(t *testing.T) {
	for _, tt := range trains {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.spec
			s.payload = pattern(tt.len, 3)
			h, p := s.superPacket(tt.size)
			before := slices.Clone(p)
			want := oracleSplit(h, p)
			for _, chunk := range []int{1, 3, 64, 1 << 16} {
				diff(t, splitAll(t, h, p, chunk), want)
			}
			for i, seg := range want {
				if !validChecksums(seg) {
					t.Errorf("packet %d has a wrong checksum", i)
				}
			}
			if !bytes.Equal(p, before) {
				t.Error("the parsed packet was changed")
			}
		})
	}
}

func TestSplitWithoutPartialChecksumUsesIPHeader(t *testing.T) {
	for _, s := range []spec{{id: 7}, {v6: true}, {udp: true}, {v6: true, udp: true}} {
		s.payload = pattern(5000, 1)
		h, p := s.superPacket(1000)
		want := oracleSplit(h, p)
		h.Flags, h.CsumStart, h.CsumOffset = 0, 0, 0
		diff(t, splitAll(t, h, p, 64), want)
	}
}

func TestZeroChecksumTrainStaysZeroUnlessChecksumIsRequested(t *testing.T) {
	s := spec{udp: true, zero: true, payload: pattern(3000, 1)}
	h, _ := s.superPacket(1000)
	h.Flags = 0
	for i, seg := range splitAll(t, h, s.packet(), 64) {
		if packet.UDPHeader(seg[20:]).Checksum() != 0 {
			t.Errorf("packet %d has a checksum", i)
		}
	}
	s.v6 = true
	h, _ = s.superPacket(1000)
	h.Flags = 0
	for i, seg := range splitAll(t, h, s.packet(), 64) {
		if !validChecksums(seg) {
			t.Errorf("IPv6 packet %d has no checksum", i)
		}
	}
}

func TestComputedUDPChecksumOfZeroIsSentAsOnes(t *testing.T) {
	s := spec{udp: true, payload: make([]byte, 20)}
	// Choose the first word of the payload so that the sum of the first datagram is 0xffff.
	p := s.with(func(s *spec) { s.payload = s.payload[:10] }).packet()
	be.PutUint16(s.payload, packet.UDPHeader(p[20:]).Checksum())
	h, p := s.superPacket(10)
	segs := splitAll(t, h, p, 64)
	if got := packet.UDPHeader(segs[0][20:]).Checksum(); got != 0xffff {
		t.Errorf("checksum %#x, want 0xffff", got)
	}
	diff(t, segs, oracleSplit(h, p))
}

func TestFinishCompletesOnlyPartialChecksum(t *testing.T) {
	for _, s := range []spec{{}, {v6: true}, {udp: true}, {v6: true, udp: true}, {ipOpts: []byte{1, 1, 1, 1}}} {
		for _, n := range []int{0, 1, 99, 1400} {
			s.payload = pattern(n, 5)
			want := s.packet()
			h, p := s.superPacket(1)
			h.GSOType, h.GSOSize = GSONone, 0
			padded := append(slices.Clone(p), 0xff) // beyond the IP length
			for _, in := range [][]byte{p, padded} {
				diff(t, splitAll(t, h, slices.Clone(in), 1), [][]byte{want})
				var train Train
				if r := train.Parse(h, in); r != drop.None {
					t.Fatal(r)
				}
				train.Finish(in)
				if train.Segments() != 1 || train.SegmentLen() != len(want) || train.LastLen() != len(want) {
					t.Fatalf("%d segments of %d, %d", train.Segments(), train.SegmentLen(), train.LastLen())
				}
				diff(t, [][]byte{in[:len(want)]}, [][]byte{want})
			}
		}
	}
}

func TestFinishCompletesSinglePacketTrain(t *testing.T) {
	for _, s := range []spec{{}, {v6: true, udp: true}} {
		s.payload = pattern(500, 5)
		h, p := s.superPacket(500)
		var train Train
		if r := train.Parse(h, p); r != drop.None || train.Segments() != 1 {
			t.Fatal(r, train.Segments())
		}
		train.Finish(p)
		diff(t, [][]byte{p}, [][]byte{s.packet()})
	}
}

func TestFinishKeepsCompletePacket(t *testing.T) {
	p := spec{payload: pattern(100, 1)}.packet()
	p[36] ^= 0xff // a wrong checksum is none of our business
	diff(t, splitAll(t, VnetHdr{}, p, 1), [][]byte{p})
}

func TestParseRejectsMismatchedVnetHeader(t *testing.T) {
	tcp := spec{payload: pattern(3000, 1)}
	udp := spec{udp: true, payload: pattern(3000, 1)}
	tcpHdr, _ := tcp.superPacket(1000)
	udpHdr, _ := udp.superPacket(1000)
	tcp6, udp6 := tcp, udp
	tcp6.v6, udp6.v6 = true, true
	tcp6Hdr, _ := tcp6.superPacket(1000)
	for _, tt := range []struct {
		name string
		spec spec
		hdr  VnetHdr
		h    func(*VnetHdr)
		p    func([]byte) []byte
		want drop.Reason
	}{
		{"nothing wrong", tcp, tcpHdr, nil, nil, drop.None},
		{"hdr_len is only a hint", tcp, tcpHdr, func(h *VnetHdr) { h.HdrLen = 0xffff }, nil, drop.None},
		{"empty", tcp, tcpHdr, nil, func([]byte) []byte { return nil }, drop.TXMalformed},
		{"cut", tcp, tcpHdr, nil, func(p []byte) []byte { return p[:len(p)-1] }, drop.TXMalformed},
		{"padded", tcp, tcpHdr, nil, func(p []byte) []byte { return append(p, 0) }, drop.TXMalformed},
		{"BIG TCP", tcp, tcpHdr, nil, func(p []byte) []byte { p[2], p[3] = 0, 0; return p }, drop.TXMalformed},
		{"gso_size 0", tcp, tcpHdr, func(h *VnetHdr) { h.GSOSize = 0 }, nil, drop.TXVnetHeader},
		{"TCPv6 type on IPv4", tcp, tcpHdr, func(h *VnetHdr) { h.GSOType = GSOTCPv6 }, nil, drop.TXVnetHeader},
		{"TCPv4 type on IPv6", tcp6, tcp6Hdr, func(h *VnetHdr) { h.GSOType = GSOTCPv4 }, nil, drop.TXVnetHeader},
		{"TCP type on UDP", udp, udpHdr, func(h *VnetHdr) { h.GSOType = GSOTCPv4 }, nil, drop.TXVnetHeader},
		{"UDP type on TCP", tcp, tcpHdr, func(h *VnetHdr) { h.GSOType = GSOUDPL4 }, nil, drop.TXVnetHeader},
		{"UFO", udp, udpHdr, func(h *VnetHdr) { h.GSOType = GSOUDP }, nil, drop.TXVnetHeader},
		{"ECN on UDP", udp, udpHdr, func(h *VnetHdr) { h.GSOType |= GSOECN }, nil, drop.TXVnetHeader},
		{"unknown type", tcp, tcpHdr, func(h *VnetHdr) { h.GSOType = 9 }, nil, drop.TXVnetHeader},
		{"csum_start elsewhere", tcp, tcpHdr, func(h *VnetHdr) { h.CsumStart++ }, nil, drop.TXVnetHeader},
		{"csum_offset elsewhere", tcp, tcpHdr, func(h *VnetHdr) { h.CsumOffset = 6 }, nil, drop.TXVnetHeader},
		{"fragment", tcp, tcpHdr, nil, func(p []byte) []byte { p[6] = 0x20; return p }, drop.TXVnetHeader},
		{"small data offset", tcp, tcpHdr, nil, func(p []byte) []byte { p[32] = 0x40; return p }, drop.TXMalformed},
		{
			"data offset beyond the end", tcp.with(func(s *spec) { s.payload = nil }), tcpHdr, nil,
			func(p []byte) []byte { p[32] = 0xf0; return p }, drop.TXMalformed,
		},
		{"UDP length lies", udp, udpHdr, nil, func(p []byte) []byte { p[25]++; return p }, drop.TXMalformed},
		{
			"extension headers without a partial sum",
			tcp6.with(func(s *spec) { s.ipOpts = []byte{0, 0, 1, 4, 0, 0, 0, 0} }), tcp6Hdr,
			func(h *VnetHdr) { h.Flags = 0 },
			nil, drop.TXVnetHeader,
		},
		{"single", tcp, VnetHdr{}, nil, nil, drop.None},
		{"single cut", tcp, VnetHdr{}, nil, func(p []byte) []byte { return p[:len(p)-1] }, drop.TXMalformed},
		{"single, checksum in the IP header", tcp, VnetHdr{Flags: 1, CsumStart: 19, CsumOffset: 16}, nil, nil, drop.TXVnetHeader},
		{"single, checksum beyond the end", tcp, VnetHdr{Flags: 1, CsumStart: 20, CsumOffset: 3019}, nil, nil, drop.TXVnetHeader},
		{"single, offsets that overflow", tcp, VnetHdr{Flags: 1, CsumStart: 0xffff, CsumOffset: 0xffff}, nil, nil, drop.TXVnetHeader},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := tt.spec.packet()
			if tt.h != nil {
				tt.h(&tt.hdr)
			}
			if tt.p != nil {
				p = tt.p(p)
			}
			var train Train
			if got := train.Parse(tt.hdr, p); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestParseReportsDestination(t *testing.T) {
	for _, s := range []spec{{dst: 5}, {dst: 5, v6: true}} {
		var train Train
		if r := train.Parse(VnetHdr{}, s.packet()); r != drop.None {
			t.Fatal(r)
		}
		if got, want := train.Destination().String(), map[bool]string{false: "10.9.1.5", true: "fd00::105"}[s.v6]; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestVnetHdrSurvivesEncoding(t *testing.T) {
	want := VnetHdr{1, 0x84, 0x1234, 0x5678, 0x9abc, 0xdef0}
	var b [VnetHdrLen]byte
	want.Encode(b[:])
	var got VnetHdr
	got.Decode(b[:])
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSplitAllocatesNothing(t *testing.T) {
	s := spec{payload: pattern(45*1380, 1)}
	h, p := s.superPacket(1380)
	dst := make([]byte, 64*1500)
	var train Train
	if n := testing.AllocsPerRun(20, func() {
		train.Parse(h, p)
		train.Split(dst, 1500, 16, 0, train.Segments())
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

func FuzzParse(f *testing.F) {
	var b [VnetHdrLen]byte
	for _, tt := range trains {
		s := tt.spec
		s.payload = pattern(min(tt.len, 300), 3)
		h, p := s.superPacket(min(tt.size, 100))
		h.Encode(b[:])
		f.Add(append(slices.Clone(b[:]), p...))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < VnetHdrLen {
			return
		}
		var h VnetHdr
		h.Decode(in)
		p := in[VnetHdrLen:]
		var train Train
		if r := train.Parse(h, p); r != drop.None {
			return
		}
		total := 0
		for _, seg := range splitAll(t, h, p, 64) {
			n, ok := packet.Length(seg)
			if !ok || n != len(seg) {
				t.Fatalf("a packet of %d bytes claims %d", len(seg), n)
			}
			total += n
		}
		if h.GSOType != GSONone && total-train.hdrLen*train.Segments() != len(p)-train.hdrLen {
			t.Fatalf("payload bytes went missing")
		}
	})
}
