// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"slices"
	"testing"
)

// udp4 is an IPv4 UDP packet of 4 payload bytes from 10.0.0.1 to 10.0.0.2.
func udp4(src, dst uint16) []byte {
	ip := make([]byte, 32)
	ip[0], ip[3], ip[8], ip[9] = 0x45, 32, 64, byte(UDP)
	copy(ip[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	putBE16(ip[20:], src)
	putBE16(ip[22:], dst)
	ip[25] = 12
	return ip
}

// udp6 is an IPv6 UDP packet of 4 payload bytes from fd00::1 to fd00::2.
func udp6(src, dst uint16) []byte {
	ip := make([]byte, 52)
	ip[0], ip[5], ip[6], ip[7] = 0x60, 12, byte(UDP), 64
	ip[8], ip[23], ip[24], ip[39] = 0xfd, 1, 0xfd, 2
	putBE16(ip[40:], src)
	putBE16(ip[42:], dst)
	ip[45] = 12
	return ip
}

// extended inserts extension headers of 8 bytes each in front of the transport header of an IPv6 packet.
func extended(ip []byte, types ...Protocol) []byte {
	out := slices.Clone(ip[:40])
	next := ip[6]
	for i := len(types) - 1; i >= 0; i-- {
		out = slices.Insert(out, 40, next, 0, 0, 0, 0, 0, 0, 0)
		next = byte(types[i])
	}
	out[6] = next
	out = append(out, ip[40:]...)
	IPv6(out).SetPayloadLen(len(out) - 40)
	return out
}

func set(ip []byte, at int, v ...byte) []byte {
	ip = slices.Clone(ip)
	copy(ip[at:], v)
	return ip
}

func TestLengthRejectsInvalidHeaders(t *testing.T) {
	v4, v6 := udp4(1, 2), udp6(1, 2)
	for _, tt := range []struct {
		name string
		ip   []byte
		n    int
		ok   bool
	}{
		{"empty", nil, 0, false},
		{"v4", v4, 32, true},
		{"v4 with padding", append(slices.Clone(v4), 0, 0), 32, true},
		{"v4 truncated", v4[:31], 32, false},
		{"v4 truncated in the header", v4[:19], 0, false},
		{"v4 of its header only", set(v4, 2, 0, 20), 20, true},
		{"v4 shorter than its header", set(v4, 2, 0, 19), 19, false},
		{"v4 with IHL 4", set(v4, 0, 0x44), 32, false},
		{"v4 with options", set(v4, 0, 0x48), 32, true},
		{"v4 with options beyond the end", set(v4, 0, 0x49), 32, false},
		{"v4 of length 0 (BIG TCP)", set(v4, 2, 0, 0), 0, false},
		{"v6", v6, 52, true},
		{"v6 truncated", v6[:51], 52, false},
		{"v6 truncated in the header", v6[:39], 0, false},
		{"v6 without payload", set(v6, 4, 0, 0), 40, true},
		{"version 5", set(v4, 0, 0x55), 0, false},
		{"version 0", set(v4, 0, 0x05), 0, false},
	} {
		n, ok := Length(tt.ip)
		if ok != tt.ok || ok && n != tt.n {
			t.Errorf("%s: got %d, %v; want %d, %v", tt.name, n, ok, tt.n, tt.ok)
		}
	}
}

func TestAddressesAreReadFromTheHeader(t *testing.T) {
	for _, tt := range []struct {
		ip       []byte
		src, dst string
	}{
		{udp4(1, 2), "10.0.0.1", "10.0.0.2"},
		{udp6(1, 2), "fd00::1", "fd00::2"},
	} {
		if s, d := Source(tt.ip), Destination(tt.ip); s != netip.MustParseAddr(tt.src) || d != netip.MustParseAddr(tt.dst) {
			t.Errorf("got %v to %v, want %s to %s", s, d, tt.src, tt.dst)
		}
	}
}

func TestFindTransportSkipsExtensionHeaders(t *testing.T) {
	v6 := udp6(1, 2)
	many := slices.Repeat([]Protocol{DestOptions}, maxExtensions)
	for _, tt := range []struct {
		name string
		ip   []byte
		want Transport
		ok   bool
	}{
		{"v4", udp4(1, 2), Transport{UDP, 20, false}, true},
		{"v4 with options", set(udp4(1, 2), 0, 0x46), Transport{UDP, 24, false}, true},
		{"v4 first fragment", set(udp4(1, 2), 6, 0x20, 0), Transport{UDP, 20, true}, true},
		{"v4 last fragment", set(udp4(1, 2), 6, 0, 1), Transport{UDP, 20, true}, true},
		{"v4 with DF", set(udp4(1, 2), 6, 0x40, 0), Transport{UDP, 20, false}, true},
		{"v6", v6, Transport{UDP, 40, false}, true},
		{"hop-by-hop", extended(v6, HopByHop), Transport{UDP, 48, false}, true},
		{"three kinds", extended(v6, HopByHop, Routing, DestOptions), Transport{UDP, 64, false}, true},
		{"fragment", extended(v6, HopByHop, Fragment), Transport{Fragment, 48, true}, true},
		{"too many", extended(v6, many...), Transport{}, false},
		{"extension beyond the end", set(extended(v6, HopByHop), 41, 9), Transport{}, false},
		{"truncated extension", set(v6, 6, byte(HopByHop))[:44], Transport{}, false},
		{"no next header", set(v6, 6, byte(NoNext)), Transport{NoNext, 40, false}, true},
	} {
		got, ok := FindTransport(tt.ip)
		if ok != tt.ok || ok && got != tt.want {
			t.Errorf("%s: got %v, %v; want %v, %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

func TestHeaderViewsReadBackWrittenFields(t *testing.T) {
	v4, v6, l4 := IPv4(udp4(1, 2)), IPv6(udp6(1, 2)), make([]byte, 20)
	v4.SetID(0xabcd)
	v4.SetTotalLen(0x1234)
	v6.SetPayloadLen(0x4321)
	tcp, udp := TCPHeader(l4), UDPHeader(make([]byte, 8))
	tcp.SetSeq(0xdeadbeef)
	tcp.SetFlags(PSH | CWR)
	tcp.SetChecksum(0x5678)
	udp.SetLen(99)
	udp.SetChecksum(7)
	if v4.ID() != 0xabcd || v4.TotalLen() != 0x1234 || v6.PayloadLen() != 0x4321 || v4.DontFragment() {
		t.Error("IP fields differ")
	}
	if tcp.Seq() != 0xdeadbeef || l4[13] != 0x88 || tcp.Checksum() != 0x5678 || udp.Len() != 99 || udp.Checksum() != 7 {
		t.Error("transport fields differ")
	}
}

func FuzzFindTransport(f *testing.F) {
	f.Add(udp4(1, 2))
	f.Add(udp6(1, 2))
	f.Add(extended(udp6(1, 2), HopByHop, Routing, Fragment))
	f.Fuzz(func(t *testing.T, b []byte) {
		FlowHash(b)
		n, ok := Length(b)
		if !ok {
			return
		}
		tr, ok := FindTransport(b[:n])
		if ok && (tr.Offset < IPv4HeaderLen || tr.Offset > n) {
			t.Fatalf("got transport header at %d, want at least %d and at most %d", tr.Offset, IPv4HeaderLen, n)
		}
	})
}
