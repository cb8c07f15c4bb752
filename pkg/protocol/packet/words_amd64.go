// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package packet

import "golang.org/x/sys/cpu"

//go:generate go run -C _asm . -out ../words_amd64.s

// The lengths in bytes for which vector code is used. BenchmarkWords measures the crossover: at 128, two iterations
// without a remainder, the generic loop is equally fast. The upper bound is a quarter of the capacity of 64-bit sums.
const (
	minVectorLen = 129
	maxVectorLen = 4 << 30
)

// words512 is wordsGeneric for the n bytes at p, at least 65 and less than 16 GiB. It includes no other byte, and
// touches no cache line without one of these bytes.
//
//go:noescape
func words512(p *byte, n int) uint64

// useVector reports whether wordsVector is faster for n bytes on this CPU.
func useVector(n int) bool { return n >= minVectorLen && n <= maxVectorLen && hasAVX512() }

// wordsVector is wordsGeneric for lengths for which useVector returns true.
func wordsVector(b []byte) uint64 { return words512(&b[0], len(b)) }

// hasAVX512 reports whether CPU and operating system support the features that words512 uses: F, BW, BMI2 and VL.
func hasAVX512() bool {
	return cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasBMI2
}
