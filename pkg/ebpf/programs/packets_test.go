// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

func clone(ip []byte) []byte { return slices.Clone(ip) }

func set(ip []byte, at int, v ...byte) []byte {
	ip = clone(ip)
	copy(ip[at:], v)
	return ip
}

func repeat(p packet.Protocol, n int) []packet.Protocol {
	return slices.Repeat([]packet.Protocol{p}, n)
}

// transport returns size bytes that begin with a source and a destination port.
func transport(size int) []byte {
	b := make([]byte, max(size, 4))
	copy(b, []byte{0x12, 0x34, 0xab, 0xcd})
	return b[:size]
}

// ipv4 returns a packet from 192.0.2.1 to 198.51.100.2 with size bytes behind its header.
func ipv4(p packet.Protocol, size int) []byte {
	ip := make([]byte, packet.IPv4HeaderLen, packet.IPv4HeaderLen+size)
	ip[0], ip[8], ip[9] = 0x45, 64, byte(p)
	copy(ip[12:], []byte{192, 0, 2, 1, 198, 51, 100, 2})
	return fixLength(append(ip, transport(size)...))
}

// ipv6 returns a packet from 2001:db8::1 to fd00::2 with size bytes behind its header.
func ipv6(p packet.Protocol, size int) []byte {
	ip := make([]byte, packet.IPv6HeaderLen, packet.IPv6HeaderLen+size)
	ip[0], ip[6], ip[7] = 0x60, byte(p), 64
	copy(ip[8:], []byte{0x20, 0x01, 0x0d, 0xb8, 15: 1})
	copy(ip[24:], []byte{0xfd, 15: 2})
	return fixLength(append(ip, transport(size)...))
}

// fixLength sets the header's length to the packet's.
func fixLength(ip []byte) []byte {
	if packet.VersionOf(ip) == packet.Version4 {
		packet.IPv4(ip).SetTotalLen(len(ip))
	} else {
		packet.IPv6(ip).SetPayloadLen(len(ip) - packet.IPv6HeaderLen)
	}
	return ip
}

// reverse exchanges the addresses and ports of a packet without options or extension headers.
func reverse(ip []byte) []byte {
	out := clone(ip)
	at, size := 12, 4
	if packet.VersionOf(ip) == packet.Version6 {
		at, size = 8, 16
	}
	end := at + 2*size
	copy(out[at:], ip[at+size:end])
	copy(out[at+size:], ip[at:at+size])
	copy(out[end:], ip[end+2:end+4])
	copy(out[end+2:], ip[end:end+2])
	return out
}

// addIPv4Options inserts words of IPv4 options.
func addIPv4Options(ip []byte, words int) []byte {
	out := slices.Insert(clone(ip), packet.IPv4HeaderLen, make([]byte, 4*words)...)
	out[0] += byte(words)
	return fixLength(out)
}

// addIPv6Extensions inserts IPv6 extension headers of 8*(1+length) bytes each; fragment headers are of 8.
func addIPv6Extensions(ip []byte, length int, types ...packet.Protocol) []byte {
	out := clone(ip)
	for _, p := range slices.Backward(types) {
		size := 8 + 8*length
		if p == packet.Fragment {
			size = 8
		}
		header := make([]byte, size)
		header[0], header[1] = out[6], byte(size/8-1)
		out = slices.Insert(out, packet.IPv6HeaderLen, header...)
		out[6] = byte(p)
	}
	return fixLength(out)
}

// generator generates packets of all kinds, half of them malformed.
type generator struct{ *rand.Rand }

func newGenerator(seed uint64) generator { return generator{rand.New(rand.NewPCG(seed, seed))} }

// bytes fills b.
func (g generator) bytes(b []byte) {
	for i := range b {
		b[i] = byte(g.Uint32())
	}
}

// next returns a packet of at least one byte, and its kind.
func (g generator) next() (kind string, ip []byte) {
	switch g.IntN(10) {
	case 0:
		ip = make([]byte, 1+g.IntN(200))
		g.bytes(ip)
		return "garbage", ip
	case 1, 2, 3, 4:
		kind, ip = "v4", g.ipv4()
	default:
		kind, ip = "v6", g.ipv6()
	}
	if g.IntN(2) == 0 {
		return kind, ip
	}
	return "damaged " + kind, g.damage(ip)
}

func (g generator) protocol() packet.Protocol {
	known := []packet.Protocol{packet.TCP, packet.UDP, packet.SCTP, packet.ICMP, packet.ICMPv6, packet.NoNext}
	if i := g.IntN(len(known) + 1); i < len(known) {
		return known[i]
	}
	return packet.Protocol(g.Uint32())
}

func (g generator) ipv4() []byte {
	ip := ipv4(g.protocol(), g.IntN(60))
	g.bytes(ip[12:])
	if g.IntN(4) == 0 {
		edges := []uint16{0, 1, 0x1fff, 0x2000, 0x4000, 0x8000, 0xffff, uint16(g.Uint32())}
		binary.BigEndian.PutUint16(ip[6:], edges[g.IntN(len(edges))])
	}
	if g.IntN(3) == 0 {
		ip = addIPv4Options(ip, 1+g.IntN(10))
	}
	return ip
}

func (g generator) ipv6() []byte {
	ip := ipv6(g.protocol(), g.IntN(60))
	g.bytes(ip[8:])
	skipped := []packet.Protocol{packet.HopByHop, packet.Routing, packet.DestOptions, packet.Fragment}
	for range g.IntN(4) * g.IntN(4) {
		ip = addIPv6Extensions(ip, g.IntN(3), skipped[g.IntN(10)%len(skipped)])
	}
	return ip
}

// damage changes a byte of the header, or truncates or pads the packet.
func (g generator) damage(ip []byte) []byte {
	switch g.IntN(3) {
	case 0:
		ip[g.IntN(min(len(ip), 60))] = byte(g.Uint32())
	case 1:
		ip = ip[:1+g.IntN(len(ip))]
	default:
		ip = append(ip, make([]byte, 1+g.IntN(20))...)
	}
	return ip
}
