// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"testing"

	"github.com/ropewalk/ropewalk/test/cost"
)

// BenchmarkSplit parses a train of the kernel's and cuts it into packets of 1420 bytes, checksums and all.
func BenchmarkSplit(b *testing.B) {
	for _, c := range []struct {
		name string
		spec spec
	}{
		{"TCPv4 45x1420B", spec{payload: pattern(45*1380, 1)}},
		{"TCPv6 45x1420B", spec{v6: true, payload: pattern(45*1360, 1)}},
		{"UDPv4 45x1420B", spec{udp: true, payload: pattern(45*1392, 1)}},
	} {
		b.Run(c.name, func(b *testing.B) {
			h, p := c.spec.superPacket(len(c.spec.payload) / 45)
			dst := make([]byte, 64*1500)
			var train Train
			m := cost.Of(b, 45, 45*1420)
			for b.Loop() {
				train.Parse(h, p)
				train.Split(dst, 1500, 16, 0, train.Segments())
			}
			m.Report()
			if train.Segments() != 45 || train.SegmentLen() != 1420 {
				b.Fatalf("%d packets of %d bytes", train.Segments(), train.SegmentLen())
			}
		})
	}
}

// BenchmarkMerge verifies the checksums of 45 packets and merges them into as few trains as possible; that of bare ACKs
// is one each.
func BenchmarkMerge(b *testing.B) {
	for _, c := range []struct {
		name    string
		packets [][]byte
	}{
		{"TCPv4 45x1420B", spec{options: make([]byte, 12)}.run(45, 1368)},
		{"TCPv6 45x1420B", spec{v6: true, options: make([]byte, 12)}.run(45, 1348)},
		{"UDPv4 45x1420B", spec{udp: true}.run(45, 1392)},
		{"UDPv4 45x1420B no checksum", spec{udp: true, zero: true}.run(45, 1392)},
		{"45 bare ACKs", spec{}.run(45, 0)},
	} {
		b.Run(c.name, func(b *testing.B) {
			merger := NewMerger(true)
			m := cost.Of(b, 45, 45*len(c.packets[0]))
			for b.Loop() {
				for _, p := range c.packets {
					merger.Add(p)
				}
				if _, err := merger.Flush(discard{}); err != nil {
					b.Fatal(err)
				}
			}
			m.Report()
		})
	}
}
