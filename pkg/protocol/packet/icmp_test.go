// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"math/rand/v2"
	"net"
	"slices"
	"testing"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// long returns ip with n more bytes of payload.
func long(ip []byte, n int) []byte {
	ip = append(slices.Clone(ip), make([]byte, n)...)
	fillRandom(rand.New(rand.NewPCG(7, 8)), ip[len(ip)-n:])
	if VersionOf(ip) == Version4 {
		IPv4(ip).SetTotalLen(len(ip))
	} else {
		IPv6(ip).SetPayloadLen(len(ip) - IPv6HeaderLen)
	}
	return ip
}

// parseError4 checks an IPv4 error with independent code and returns its ICMP message.
func parseError4(t *testing.T, b, about []byte) *icmp.Message {
	t.Helper()
	h, err := ipv4.ParseHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	if slowSum(b[:h.Len], 0) != 0 || slowSum(b[h.Len:], 0) != 0 {
		t.Error("a checksum is wrong")
	}
	if h.TotalLen != len(b) || h.Protocol != int(ICMP) || !h.Src.Equal(net.IP(about[16:20])) || !h.Dst.Equal(net.IP(about[12:16])) {
		t.Errorf("got header %v", h)
	}
	return parseICMP(t, int(ICMP), b[h.Len:])
}

// parseError6 is parseError4 for IPv6.
func parseError6(t *testing.T, b, about []byte) *icmp.Message {
	t.Helper()
	h, err := ipv6.ParseHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	pseudo := slices.Concat(b[8:40], []byte{0, 0, byte(h.PayloadLen >> 8), byte(h.PayloadLen), 0, 0, 0, byte(ICMPv6)}, b[40:])
	if slowSum(pseudo, 0) != 0 {
		t.Error("the checksum is wrong")
	}
	if h.PayloadLen != len(b)-40 || h.NextHeader != int(ICMPv6) || !h.Src.Equal(net.IP(about[24:40])) || !h.Dst.Equal(net.IP(about[8:24])) {
		t.Errorf("got header %v", h)
	}
	return parseICMP(t, int(ICMPv6), b[40:])
}

func parseICMP(t *testing.T, proto int, b []byte) *icmp.Message {
	t.Helper()
	m, err := icmp.ParseMessage(proto, b)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestPacketTooBigQuotesPacketAndMTU(t *testing.T) {
	for _, more := range []int{0, 500, 1400, 9000} {
		dst := bytes.Repeat([]byte{0xa5}, MaxICMPError)
		ip := long(udp4(1, 2), more)
		m := parseError4(t, dst[:WritePacketTooBig(dst, ip, 1300)], ip)
		body := m.Body.(*icmp.DstUnreach)
		if want := ip[:min(len(ip), 576-28)]; m.Type != ipv4.ICMPTypeDestinationUnreachable || m.Code != 4 || !bytes.Equal(body.Data, want) {
			t.Errorf("IPv4 and %d bytes: got %v/%d with %d bytes, want %d", more, m.Type, m.Code, len(body.Data), len(want))
		}
		if got := be32(dst[24:28]); got != 1300 {
			t.Errorf("IPv4: got MTU %d, want 1300", got)
		}
		for mtu, want := range map[int]int{1300: 1300, 1000: 1280} {
			ip := long(udp6(1, 2), more)
			m := parseError6(t, dst[:WritePacketTooBig(dst, ip, mtu)], ip)
			body := m.Body.(*icmp.PacketTooBig)
			quote := ip[:min(len(ip), 1280-48)]
			if m.Type != ipv6.ICMPTypePacketTooBig || m.Code != 0 || body.MTU != want || !bytes.Equal(body.Data, quote) {
				t.Errorf("IPv6: got %v/%d, MTU %d, %d bytes", m.Type, m.Code, body.MTU, len(body.Data))
			}
		}
	}
}

func TestHostUnreachableQuotesPacket(t *testing.T) {
	dst := make([]byte, MaxICMPError)
	ip := long(udp4(1, 2), 200)
	m := parseError4(t, dst[:WriteHostUnreachable(dst, ip)], ip)
	if m.Type != ipv4.ICMPTypeDestinationUnreachable || m.Code != 1 || !bytes.Equal(m.Body.(*icmp.DstUnreach).Data, ip) {
		t.Errorf("got %v", m)
	}
	ip = long(udp6(1, 2), 200)
	m = parseError6(t, dst[:WriteHostUnreachable(dst, ip)], ip)
	if m.Type != ipv6.ICMPTypeDestinationUnreachable || m.Code != 3 || !bytes.Equal(m.Body.(*icmp.DstUnreach).Data, ip) {
		t.Errorf("got %v", m)
	}
}

// icmpOf returns ip with the ICMP type behind its header.
func icmpOf(ip []byte, kind byte) []byte {
	if VersionOf(ip) == Version4 {
		return set(set(ip, 9, byte(ICMP)), 20, kind)
	}
	return set(set(ip, 6, byte(ICMPv6)), 40, kind)
}

func TestICMPErrorAnswersOnlyUnicastNonErrors(t *testing.T) {
	v4, v6 := udp4(1, 2), udp6(1, 2)
	fragment6 := extended(v6, Fragment)
	for _, tt := range []struct {
		name string
		ip   []byte
		want bool
	}{
		{"IPv4", v4, true},
		{"IPv6", v6, true},
		{"first fragment", set(v4, 6, 0x20, 0), true},
		{"later fragment", set(v4, 6, 0x20, 5), false},
		{"last fragment", set(v4, 6, 0, 5), false},
		{"first IPv6 fragment", set(fragment6, 43, 1), true},
		{"later IPv6 fragment", set(fragment6, 43, 8), false},
		{"truncated fragment header", set(v6, 6, byte(Fragment))[:44], false},
		{"echo request", icmpOf(v4, 8), true},
		{"unreachable", icmpOf(v4, 3), false},
		{"redirect", icmpOf(v4, 5), false},
		{"time exceeded", icmpOf(v4, 11), false},
		{"unknown ICMP type", icmpOf(v4, 99), false},
		{"ICMP without type", set(icmpOf(v4, 8), 2, 0, 20), false},
		{"ICMPv6 echo request", icmpOf(v6, 128), true},
		{"ICMPv6 too big", icmpOf(v6, 2), false},
		{"ICMPv6 redirect", icmpOf(v6, 137), false},
		{"ICMPv6 error behind options", extended(icmpOf(v6, 1), DestOptions), false},
		{"ICMPv6 error behind authentication", extended(icmpOf(v6, 1), AuthenticationHeader), false},
		{"UDP behind authentication", extended(v6, AuthenticationHeader), true},
		{"ICMPv6 error behind options in fragment", extended(icmpOf(v6, 1), Fragment, DestOptions), false},
		{"echo request behind options in fragment", extended(icmpOf(v6, 128), Fragment, DestOptions), true},
		{"options beyond the end", set(extended(icmpOf(v6, 1), DestOptions), 41, 255), false},
		{"ICMPv6 error in fragment", extended(icmpOf(v6, 1), Fragment), false},
		{"ICMPv6 without type", set(icmpOf(v6, 128), 4, 0, 0)[:40], false},
		{"too many extension headers", extended(v6, slices.Repeat([]Protocol{DestOptions}, maxExtensions)...), false},
		{"to multicast", set(v4, 16, 224, 0, 0, 5), false},
		{"to broadcast", set(v4, 16, 255, 255, 255, 255), false},
		{"from broadcast", set(v4, 12, 255, 255, 255, 255), false},
		{"from unspecified", set(v4, 12, 0, 0, 0, 0), false},
		{"from this network", set(v4, 12, 0, 1, 0, 0), false},
		{"from loopback", set(v4, 12, 127, 0, 0, 1), false},
		{"from multicast", set(v4, 12, 224, 0, 0, 1), false},
		{"to IPv6 multicast", set(v6, 24, 0xff, 2), false},
		{"from IPv6 multicast", set(v6, 8, 0xff, 2), false},
		{"from IPv6 unspecified", set(v6, 8, make([]byte, 16)...), false},
	} {
		if n, ok := Length(tt.ip); ok {
			tt.ip = tt.ip[:n]
		}
		if got := AllowsICMPError(tt.ip); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func FuzzICMPError(f *testing.F) {
	f.Add(udp4(1, 2), uint16(1300))
	f.Add(extended(udp6(1, 2), HopByHop, Fragment), uint16(9))
	f.Fuzz(func(t *testing.T, ip []byte, mtu uint16) {
		n, ok := Length(ip)
		if !ok {
			return
		}
		dst := make([]byte, MaxICMPError)
		if ip = ip[:n]; !AllowsICMPError(ip) {
			return
		}
		for _, size := range []int{WriteHostUnreachable(dst, ip), WritePacketTooBig(dst, ip, int(mtu))} {
			if m, ok := Length(dst[:size]); !ok || m != size || AllowsICMPError(dst[:size]) {
				t.Fatalf("an error of %d bytes is invalid, or may be answered", size)
			}
		}
		if VersionOf(ip) == Version4 {
			parseError4(t, dst[:IPv4(dst).TotalLen()], ip)
		} else {
			parseError6(t, dst[:IPv6HeaderLen+IPv6(dst).PayloadLen()], ip)
		}
	})
}
