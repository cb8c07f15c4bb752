// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

var be = binary.BigEndian

// spec describes a packet in the words of a test.
type spec struct {
	v6       bool
	udp      bool
	src, dst byte   // last byte of the address
	port     uint16 // source port
	seq      uint32
	ack      uint32
	flags    packet.TCPFlags // ACK if 0
	window   uint16
	urgent   uint16
	options  []byte // TCP options, a multiple of 4
	ipOpts   []byte // IPv4 options or IPv6 extension headers (starting with hop-by-hop)
	tos      byte
	ttl      byte
	id       uint16
	df       bool
	frag     uint16 // IPv4 flags and offset
	zero     bool   // UDP: no checksum
	payload  []byte
}

func (s spec) packet() []byte {
	l4 := s.transport()
	ip := s.ip(len(l4))
	at := len(ip)
	p := append(ip, l4...)
	if !s.v6 {
		be.PutUint16(p[10:], ^slowSum(p[:at]))
	}
	if !s.zero {
		fix(p, at, s.udp)
	}
	return p
}

// fix writes the right transport checksum.
func fix(p []byte, l4 int, udp bool) {
	at, proto := l4+16, byte(packet.TCP)
	if udp {
		at, proto = l4+6, byte(packet.UDP)
	}
	be.PutUint16(p[at:], 0)
	sum := ^slowSum(append(slowPseudo(p, proto, len(p)-l4), p[l4:]...))
	if udp && sum == 0 {
		sum = 0xffff
	}
	be.PutUint16(p[at:], sum)
}

func (s spec) transport() []byte {
	if s.udp {
		h := be.AppendUint16(nil, s.port)
		h = be.AppendUint16(h, 4789)
		h = be.AppendUint16(h, uint16(8+len(s.payload)))
		return append(append(h, 0, 0), s.payload...)
	}
	if s.flags == 0 {
		s.flags = packet.ACK
	}
	h := be.AppendUint16(nil, s.port)
	h = be.AppendUint16(h, 5201)
	h = be.AppendUint32(h, s.seq)
	h = be.AppendUint32(h, s.ack)
	h = append(h, byte(20+len(s.options))/4<<4, byte(s.flags))
	h = be.AppendUint16(h, s.window)
	h = append(h, 0, 0)
	h = be.AppendUint16(h, s.urgent)
	return append(append(h, s.options...), s.payload...)
}

func (s spec) ip(n int) []byte {
	proto := byte(packet.TCP)
	if s.udp {
		proto = byte(packet.UDP)
	}
	ttl := 64 - s.ttl
	if s.v6 {
		h := []byte{0x60 | s.tos>>4, s.tos << 4, 0, 0, 0, 0, proto, ttl}
		be.PutUint16(h[4:], uint16(n+len(s.ipOpts)))
		if len(s.ipOpts) > 0 {
			h[6] = byte(packet.HopByHop)
			s.ipOpts = slices.Clone(s.ipOpts)
			s.ipOpts[0] = proto
		}
		h = append(h, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, s.src)
		h = append(h, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, s.dst)
		return append(h, s.ipOpts...)
	}
	h := []byte{byte(0x45 + len(s.ipOpts)/4), s.tos, 0, 0, 0, 0, 0, 0, ttl, proto, 0, 0}
	be.PutUint16(h[2:], uint16(20+len(s.ipOpts)+n))
	be.PutUint16(h[4:], s.id)
	frag := s.frag
	if s.df {
		frag |= packet.IPv4DontFragment
	}
	be.PutUint16(h[6:], frag)
	h = append(h, 10, 9, 0, s.src, 10, 9, 1, s.dst)
	return append(h, s.ipOpts...)
}

// with returns s changed by f.
func (s spec) with(f func(*spec)) spec {
	f(&s)
	return s
}

// run is n packets of size payload bytes each, as a stack would send them: sequence numbers and IDs count up.
func (s spec) run(n, size int) [][]byte {
	var out [][]byte
	for i := range n {
		out = append(out, s.with(func(s *spec) {
			s.seq += uint32(i * size)
			s.id += uint16(i)
			s.payload = pattern(size, int(s.seq))
		}).packet())
	}
	return out
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte((i + seed) * 7 >> 1)
	}
	return b
}

// slowSum is the reference of RFC 1071, word by word.
func slowSum(b []byte) uint16 {
	var sum uint32
	for i, v := range b {
		sum += uint32(v) << (8 * (1 - i%2))
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum>>16 + sum&0xffff)
}

func slowPseudo(p []byte, proto byte, n int) []byte {
	addresses := p[12:20]
	if p[0]>>4 == 6 {
		addresses = p[8:40]
	}
	pseudo := be.AppendUint32(slices.Clone(addresses), uint32(n))
	return append(pseudo, 0, 0, 0, proto)
}

// validChecksums verifies all checksums of a TCP or UDP packet the slow way.
func validChecksums(p []byte) bool {
	tr, ok := packet.FindTransport(p)
	if !ok || p[0]>>4 == 4 && slowSum(p[:tr.Offset]) != 0xffff {
		return false
	}
	if tr.Protocol == packet.UDP && p[0]>>4 == 4 && be.Uint16(p[tr.Offset+6:]) == 0 {
		return true
	}
	return slowSum(append(slowPseudo(p, byte(tr.Protocol), len(p)-tr.Offset), p[tr.Offset:]...)) == 0xffff
}

// superPacket is the super-packet that a kernel would pass for the packet of s: s.payload is the whole train's.
func (s spec) superPacket(size int) (VnetHdr, []byte) {
	p := s.packet()
	tr, _ := packet.FindTransport(p)
	h := VnetHdr{Flags: FlagNeedsCsum, GSOSize: uint16(size), CsumStart: uint16(tr.Offset), CsumOffset: 16}
	switch {
	case s.udp:
		h.GSOType, h.CsumOffset = GSOUDPL4, 6
	case s.v6:
		h.GSOType = GSOTCPv6
	default:
		h.GSOType = GSOTCPv4
	}
	if !s.udp && s.flags&packet.CWR != 0 {
		h.GSOType |= GSOECN
	}
	be.PutUint16(p[tr.Offset+int(h.CsumOffset):], slowSum(slowPseudo(p, byte(tr.Protocol), len(p)-tr.Offset)))
	return h, p
}

// oracleSplit cuts a train the slow and obvious way: every packet is made from the whole one and summed from scratch.
func oracleSplit(h VnetHdr, p []byte) [][]byte {
	tr, _ := packet.FindTransport(p)
	l4 := tr.Offset
	udp := h.GSOType == GSOUDPL4
	hdr := l4 + 8
	if !udp {
		hdr = l4 + int(p[l4+12]>>4)*4
	}
	var out [][]byte
	rest := p[hdr:]
	for i := 0; len(rest) > 0 || i == 0; i++ {
		n := min(len(rest), int(h.GSOSize))
		seg := append(slices.Clone(p[:hdr]), rest[:n]...)
		rest = rest[n:]
		if seg[0]>>4 == 4 {
			be.PutUint16(seg[2:], uint16(len(seg)))
			be.PutUint16(seg[4:], be.Uint16(p[4:])+uint16(i))
			be.PutUint16(seg[10:], 0)
			be.PutUint16(seg[10:], ^slowSum(seg[:l4]))
		} else {
			be.PutUint16(seg[4:], uint16(len(seg)-40))
		}
		if udp {
			be.PutUint16(seg[l4+4:], uint16(len(seg)-l4))
		} else {
			be.PutUint32(seg[l4+4:], be.Uint32(p[l4+4:])+uint32(i*int(h.GSOSize)))
			if len(rest) > 0 {
				seg[l4+13] &^= byte(packet.FIN | packet.PSH)
			}
			if i > 0 {
				seg[l4+13] &^= byte(packet.CWR)
			}
		}
		if h.Flags&FlagNeedsCsum != 0 || !udp || be.Uint16(p[l4+6:]) != 0 {
			fix(seg, l4, udp)
		}
		out = append(out, seg)
	}
	return out
}

// splitAll splits a train through Train, in sends of at most chunk packets.
func splitAll(t testing.TB, h VnetHdr, p []byte, chunk int) [][]byte {
	t.Helper()
	var train Train
	if r := train.Parse(h, p); r != drop.None {
		t.Fatalf("parsing %+v % x: got %v, want %v", h, p[:min(80, len(p))], r, drop.None)
	}
	const headroom, tailroom = 16, 20
	stride := headroom + train.SegmentLen() + tailroom
	var out [][]byte
	for first := 0; first < train.Segments(); first += chunk {
		count := min(chunk, train.Segments()-first)
		dst := bytes.Repeat([]byte{0xa5}, count*stride)
		train.Split(dst, stride, headroom, first, count)
		for k := range count {
			n := train.SegmentLen()
			if first+k == train.Segments()-1 {
				n = train.LastLen()
			}
			slot := dst[k*stride : (k+1)*stride]
			if len(bytes.Trim(slot[:headroom], "\xa5")) != 0 || len(bytes.Trim(slot[headroom+n:], "\xa5")) != 0 {
				t.Fatalf("packet %d: bytes around it were touched", first+k)
			}
			out = append(out, slot[headroom:headroom+n])
		}
	}
	return out
}

// trainSink collects the trains that a Merger writes.
type trainSink struct {
	all          [][]byte
	bufferCounts []int
	err          error
}

func (e *trainSink) WriteTrain(buffers [][]byte) error {
	e.all = append(e.all, bytes.Join(buffers, nil))
	e.bufferCounts = append(e.bufferCounts, len(buffers))
	return e.err
}

func merge(t testing.TB, uso bool, pkts ...[]byte) *trainSink {
	t.Helper()
	m := NewMerger(uso)
	for _, p := range pkts {
		m.Add(p)
	}
	var out trainSink
	if failed, err := m.Flush(&out); failed != 0 || err != nil {
		t.Fatalf("flush: got %d, error %v, want 0, no error", failed, err)
	}
	return &out
}

// at returns the decoded train i.
func (e *trainSink) at(i int) (VnetHdr, []byte) {
	var h VnetHdr
	h.Decode(e.all[i])
	return h, e.all[i][VnetHdrLen:]
}

// counts returns the number of packets of each train, by the oracle.
func (e *trainSink) counts() []int {
	var out []int
	for i := range e.all {
		h, p := e.at(i)
		if h.GSOType == GSONone {
			out = append(out, 1)
			continue
		}
		out = append(out, len(oracleSplit(h, p)))
	}
	return out
}
