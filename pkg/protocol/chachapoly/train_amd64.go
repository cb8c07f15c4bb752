// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

import "golang.org/x/sys/cpu"

//go:generate go run -C _asm . -out ../chacha_amd64.s chacha
//go:generate go run -C _asm . -out ../chacha256_amd64.s chacha256

// AVX512 is the implementation with vector lanes: sixteen blocks of ChaCha20 (AVX-512 F and BW) and eight messages of
// Poly1305 (IFMA) at a time.
const AVX512 = "avx512"

// AVX2 is the implementation for other CPUs: sixteen blocks of ChaCha20, eight in a vector, and four messages of Poly1305
// at a time.
const AVX2 = "avx2"

// avx2Lanes is AVX2 without the general registers, whose unrolled code is large.
const avx2Lanes = "avx2-lanes"

// vectorImplementations is the table of implementations.
var vectorImplementations = []*implementation{
	{name: AVX512, supported: hasAVX512, seal: train512.seal, open: train512.open},
	{name: AVX2, supported: hasAVX2, seal: train256.seal, open: train256.open},
	{name: avx2Lanes, supported: hasAVX2, seal: train256.trainCipher.seal, open: train256.trainCipher.open},
}

var (
	train512 = &trainCipher{blocks: 16, chacha: chacha512, tags: polyTags512}
	train256 = &fusedCipher{trainCipher{blocks: 16, chacha: chacha256, tags: polyTags256}}
)

// The layout of the area of both kernels, as in _asm/chacha.go: lanes, then a slot for each job.
const (
	areaFixed = 5696
	areaSlot  = 128
	areaLen   = areaFixed + batchLen*areaSlot + 63
)

// chachaLanes512 runs ChaCha20 over n jobs, sixteen blocks of any of them at a time. Only this function and
// chachaLanes256 hold addresses as numbers, and no stack can move while they run. The slots in area are zero before and
// after.
//
//go:noescape
func chachaLanes512(state *[16]uint32, jobs *polyJob, nonces *uint64, n int, what uint64, area *byte)

// chachaLanes256 does the same with AVX2 and BMI2. Meanwhile it authenticates the units of runs, as far as it gets.
//
//go:noescape
func chachaLanes256(state *[16]uint32, jobs *polyJob, nonces *uint64, n int, what uint64, area *byte, runs *macRun, count int)

func chacha512(k *secret, s *vectorScratch, jobs []polyJob, what uint64) {
	chachaLanes512(&k.state, &jobs[0], &s.nonces[0], len(jobs), what, &s.area[0])
}

func chacha256(k *secret, s *vectorScratch, jobs []polyJob, what uint64) {
	chachaLanes256(&k.state, &jobs[0], &s.nonces[0], len(jobs), what, &s.area[0], nil, 0)
}

func hasAVX2() bool { return cpu.X86.HasAVX2 && cpu.X86.HasBMI2 }

// hasAVX512 reports whether the CPU supports the features of both parts: ChaCha20 F, BW and BMI2, Poly1305 also DQ, VL, IFMA and VBMI2.
func hasAVX512() bool {
	x := cpu.X86
	return x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasAVX512IFMA && x.HasAVX512VBMI2 && x.HasBMI2
}
