// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package packet

import "golang.org/x/sys/cpu"

//go:generate go run -C _asm . -out ../words_amd64.s

// The lengths in bytes for which vector code is used. BenchmarkWords measures the crossovers: at 128, two iterations
// without a remainder, the generic loop is as fast as words512. The upper bound is a quarter of the capacity of 64-bit sums.
const (
	minLen512    = 129
	minLen256    = 193
	maxVectorLen = 4 << 30
)

// words512 is wordsGeneric for the n bytes at p, at least 65 and less than 16 GiB. It includes no other byte, and
// touches no cache line without one of these bytes.
//
//go:noescape
func words512(p *byte, n int) uint64

// words256 is wordsGeneric for the n bytes at p, a multiple of 64, at least 64 and less than 16 GiB.
//
//go:noescape
func words256(p *byte, n int) uint64

// useVector reports whether wordsVector is faster for n bytes on this CPU.
func useVector(n int) bool {
	return n >= minLen512 && n <= maxVectorLen && (hasAVX512() || cpu.X86.HasAVX2 && n >= minLen256)
}

// wordsVector is wordsGeneric for lengths for which useVector returns true.
func wordsVector(b []byte) uint64 {
	if hasAVX512() {
		return words512(&b[0], len(b))
	}
	return wordsAVX2(b)
}

// wordsAVX2 is wordsGeneric for at least 64 bytes.
func wordsAVX2(b []byte) uint64 {
	whole := len(b) &^ 63
	return tail(b[whole:], words256(&b[0], whole))
}

// hasAVX512 reports whether CPU and operating system support the features that words512 uses: F, BW, BMI2 and VL.
func hasAVX512() bool {
	return cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasBMI2
}
