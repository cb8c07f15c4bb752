// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package packet

import "golang.org/x/sys/cpu"

//go:generate go run -C _asm . -out ../words_amd64.s

// What vectors are for, in bytes: BenchmarkWords has the crossing (two turns without a rest, 128, are the last length at
// which the generic loop is level), and the upper bound is a quarter of what 64-bit sums have room for.
const (
	worthLen = 129
	mostLen  = 4 << 30
)

// words512 is wordsGeneric for the n bytes at p, at least 65 and less than 16 GiB. It takes no other byte into account
// and touches no cache line without one of them.
//
//go:noescape
func words512(p *byte, n int) uint64

// vectorsPay tells whether wordsVector is the faster way to sum n bytes on this CPU.
func vectorsPay(n int) bool { return n >= worthLen && n <= mostLen && runs512() }

// wordsVector is wordsGeneric for lengths of which vectorsPay.
func wordsVector(b []byte) uint64 { return words512(&b[0], len(b)) }

// runs512 tells whether CPU and operating system have what words512 uses, F, BW and BMI2, and VL, which comes with BW.
func runs512() bool {
	return cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasBMI2
}
