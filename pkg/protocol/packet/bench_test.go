// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"strconv"
	"testing"

	"github.com/ropewalk/ropewalk/test/cost"
)

// BenchmarkSum sums as many packets as a train has.
func BenchmarkSum(b *testing.B) {
	const packets = 45
	for _, size := range []int{1400, 64} {
		b.Run(strconv.Itoa(size)+"B", func(b *testing.B) {
			const stride = 1472
			train := make([]byte, packets*stride)
			sum := uint64(0)
			m := cost.Of(b, packets, packets*size)
			for b.Loop() {
				for at := 0; at < len(train); at += stride {
					sum = Sum(train[at:at+size], sum&0xffff)
				}
			}
			m.Report()
		})
	}
}

func BenchmarkFlowHash(b *testing.B) {
	const packets = 64
	for _, ip := range [][]byte{udp4(1000, 53), udp6(1000, 53)} {
		b.Run("IPv"+strconv.Itoa(int(ip[0]>>4)), func(b *testing.B) {
			hash := uint32(0)
			m := cost.Of(b, packets, 0)
			for b.Loop() {
				for range packets {
					hash ^= FlowHash(ip)
				}
			}
			m.Report()
		})
	}
}
