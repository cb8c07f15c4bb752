// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// sets of lengths of plaintext.
var sets = []struct {
	name    string
	lengths []int
}{
	{"45x1440", slices.Repeat([]int{1440}, 45)},
	{"45x1420", slices.Repeat([]int{1420}, 45)},
	{"16x1440", slices.Repeat([]int{1440}, 16)},
	{"8x1440", slices.Repeat([]int{1440}, 8)},
	{"4x1440", slices.Repeat([]int{1440}, 4)},
	{"2x1440", slices.Repeat([]int{1440}, 2)},
	{"1x1440", []int{1440}},
	{"1x9000", []int{9000}},
	{"45x512", slices.Repeat([]int{512}, 45)},
	{"45x256", slices.Repeat([]int{256}, 45)},
	{"45x128", slices.Repeat([]int{128}, 45)},
	{"45x64", slices.Repeat([]int{64}, 45)},
	{"128x64", slices.Repeat([]int{64}, 128)},
	{"8x64", slices.Repeat([]int{64}, 8)},
	{"4x64", slices.Repeat([]int{64}, 4)},
	{"2x64", slices.Repeat([]int{64}, 2)},
	{"1x64", []int{64}},
	{"mixed64", mixed(64)},
	{"mixed12", mixed(12)},
}

// mixed are lengths as an ordinary link has them: mostly small and mostly full packets.
func mixed(n int) []int {
	r := rand.New(rand.NewPCG(20, 20))
	lengths := make([]int, n)
	for i := range lengths {
		switch r.IntN(5) {
		case 0, 1:
			lengths[i] = 60 + r.IntN(60)
		case 2, 3:
			lengths[i] = 1452 - r.IntN(30)
		default:
			lengths[i] = 60 + r.IntN(1393)
		}
	}
	return lengths
}

// BenchmarkSets times all implementations in turn, so that whatever else the machine does meets each, and reports the
// fastest run of each and how many times as fast as Generic it is. It takes some thousand runs: -benchtime 3000x.
func BenchmarkSets(b *testing.B) {
	for _, set := range sets {
		for _, op := range []string{"seal", "open"} {
			b.Run(fmt.Sprintf("%s/%s", set.name, op), func(b *testing.B) { compare(b, set.lengths, op == "open") })
		}
	}
}

func compare(b *testing.B, lengths []int, open bool) {
	r := rand.New(rand.NewPCG(21, 21))
	key := randomKey(r)
	all := implementations()
	best := slices.Repeat([]time.Duration{time.Hour}, len(all))
	var contenders []*Key
	for _, i := range all {
		contenders = append(contenders, mustKey(b, i, key))
	}
	s, scratch := newSet(b, r, newOracle(b, key), lengths, func() int { return 16 + r.IntN(16) }), new(Scratch)
	for b.Loop() {
		for i, k := range contenders {
			copy(s.buf, s.plain)
			if open {
				copy(s.buf, s.sealed)
			}
			best[i] = min(best[i], s.time(k, scratch, open))
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, impl := range all {
		b.ReportMetric(float64(best[i].Nanoseconds())/float64(len(lengths)), impl.name+"-ns/message")
		b.ReportMetric(float64(best[len(best)-1])/float64(best[i]), impl.name+"-times")
	}
}

func (s *set) time(k *Key, scratch *Scratch, open bool) time.Duration {
	begun := time.Now()
	if open {
		k.Open(scratch, s.msgs)
	} else {
		k.Seal(scratch, s.msgs)
	}
	return time.Since(begun)
}
