// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"bytes"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// gsoTrain describes a train for the kernel's GSO and for Train.
type gsoTrain struct {
	spec
	size int // payload bytes per packet
}

// newGSOTrain makes a train of the arguments of a fuzz target: any payload that fits, any flags, options and sizes that the kernel accepts
// from a TUN. options are TCP options; extensions is the length of IPv4 options or IPv6 extension headers, in 4 or 8 bytes.
func newGSOTrain(payload, size uint16, shape, flags, extensions byte, id uint16, options []byte) gsoTrain {
	s := spec{
		v6: shape&1 != 0, udp: shape&2 != 0, df: shape&4 != 0, src: 1, dst: 1, tos: shape & 0xfc, ttl: shape >> 3,
		id: id, seq: uint32(id) << 17, ack: uint32(id) * 3, window: id, urgent: uint16(flags), port: id ^ 0x5a5a,
		flags: packet.TCPFlags(flags), options: options[:min(len(options), 40)&^3],
	}
	switch n := int(extensions % 11); {
	case s.v6 && n > 0:
		if !s.udp {
			n = 1 // Linux 7.2 does not segment TCP behind two extension headers
		}
		s.ipOpts = paddingHeader(8 * n)
	case !s.v6:
		s.ipOpts = bytes.Repeat([]byte{1}, 4*n) // no-operation options, which no router changes
	}
	const headers = packet.IPv6HeaderLen + 80 + 60
	s.payload = pattern(min(int(payload), packet.MaxLen-headers), int(id))
	// The kernel takes 64 datagrams at most before Linux 6.11. The queue of a TUN holds 500 packets.
	limit := 400
	if s.udp {
		limit = MaxSegments
	}
	return gsoTrain{s, s.accepted(max(1, int(size), (len(s.payload)+limit-1)/limit))}
}

// accepted returns a segment size that Linux accepts. A train of one packet is none. Linux sees that before it knows the length of the TCP
// options (virtio_net_hdr_to_skb), which it takes for payload, and later drops a train that the options made too long
// (tcp_gso_segment). Train sends it as the one packet that it is; no kernel writes one to a TUN. Linux 7.2 segments TCP into no less than 8 bytes
// (TCP_MIN_GSO_SIZE).
func (s spec) accepted(size int) int {
	if !s.udp {
		size = max(size, 8)
	}
	if n := len(s.payload); !s.udp && size >= n && size < n+len(s.options) {
		return n + len(s.options)
	}
	return size
}

// paddingHeader is an IPv6 hop-by-hop header of n bytes with one option for experiments (RFC 4727), which hosts skip if they do not know it:
// Linux rejects long padding. The caller sets the next header.
func paddingHeader(n int) []byte {
	h := make([]byte, n)
	h[1], h[2], h[3] = byte(n/8-1), 0x1e, byte(n-4)
	return h
}

// train returns the train. Of a long hop-by-hop header all but the first 8 bytes are a destination options header instead.
func (g gsoTrain) train() (VnetHdr, []byte) {
	h, p := g.superPacket(g.size)
	if n := len(g.ipOpts); g.v6 && n > 8 {
		const first, second, destinationOptions = packet.IPv6HeaderLen, packet.IPv6HeaderLen + 8, 60
		rest := paddingHeader(n - 8)
		rest[0] = p[first]
		copy(p[second:], rest)
		copy(p[first:], paddingHeader(8))
		p[first] = destinationOptions
	}
	return h, p
}

// newSegmenter returns a router that forwards single packets: the kernel segments all trains, of any packet size.
func newSegmenter(t testing.TB) router {
	t.Helper()
	r := newRouter(t, true, 0)
	setMTU(t, "in", packet.MaxLen)
	setMTU(t, "out", packet.MaxLen)
	return r
}

func setMTU(t testing.TB, name string, mtu int) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetMTU(link, mtu); err != nil {
		t.Fatal(err)
	}
}

// wantSameSegments checks that the kernel and Train split a train into the same packets, byte for byte.
func wantSameSegments(t *testing.T, r router, g gsoTrain) {
	t.Helper()
	h, p := g.train()
	want := splitAll(t, h, p, 64)
	got := r.forward(t, len(want), func() {
		var header [VnetHdrLen]byte
		h.Encode(header[:])
		if err := r.WriteTrain([][]byte{header[:], p}); err != nil {
			t.Fatalf("the kernel rejects a train of %d packets with header %+v: %v", len(want), h, err)
		}
	})
	for i := range want {
		want[i] = forwarded(want[i])
	}
	diff(t, got, want)
	if extra := r.readRest(t); len(extra) > 0 {
		t.Fatalf("the kernel made more than %d packets, such as % x", len(want), extra[0][:min(80, len(extra[0]))])
	}
}

func TestKernelSplitsTrainsIntoSamePackets(t *testing.T) {
	r := newSegmenter(t)
	for _, tt := range trains {
		if len(tt.spec.ipOpts) > 0 && !tt.spec.v6 {
			tt.spec.ipOpts = bytes.Repeat([]byte{1}, len(tt.spec.ipOpts))
		}
		if tt.spec.udp && tt.len > MaxSegments*tt.size {
			tt.len = MaxSegments * tt.size
		}
		t.Run(tt.name, func(t *testing.T) {
			tt.spec.src, tt.spec.dst, tt.spec.payload = 1, 1, pattern(tt.len, 3)
			wantSameSegments(t, r, gsoTrain{tt.spec, tt.spec.accepted(tt.size)})
		})
	}
}

func FuzzSplitMatchesKernel(f *testing.F) {
	r := newSegmenter(f)
	f.Add(uint16(5000), uint16(1380), byte(4), byte(packet.ACK|packet.PSH|packet.FIN), byte(0), uint16(0xfffe), []byte("options!"))
	f.Add(uint16(3001), uint16(999), byte(1), byte(packet.ACK|packet.CWR|packet.ECE), byte(3), uint16(7), []byte{})
	f.Add(uint16(64), uint16(1), byte(2), byte(0), byte(10), uint16(0xffff), []byte{})
	f.Add(uint16(65535), uint16(1201), byte(3), byte(0), byte(10), uint16(1), []byte{})
	f.Add(uint16(65535), uint16(1), byte(5), byte(0xff), byte(1), uint16(9), bytes.Repeat([]byte{1}, 40))
	f.Fuzz(func(t *testing.T, payload, size uint16, shape, flags, extensions byte, id uint16, options []byte) {
		wantSameSegments(t, r, newGSOTrain(payload, size, shape, flags, extensions, id, slices.Clone(options)))
	})
}
