// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package packet

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/cpu"
)

// leastLen is the smallest length that words512 accepts.
const leastLen = 65

// eachVector runs a test for each kernel that this CPU supports, also with lengths at which Sum does not use it.
func eachVector(t *testing.T, test func(t *testing.T, words func([]byte) uint64)) {
	t.Helper()
	for name, k := range map[string]struct {
		supported bool
		words     func([]byte) uint64
	}{
		"avx512": {hasAVX512(), func(b []byte) uint64 { return words512(&b[0], len(b)) }},
		"avx2":   {cpu.X86.HasAVX2, wordsAVX2},
	} {
		t.Run(name, func(t *testing.T) {
			if !k.supported {
				t.Skip("this CPU does not have it")
			}
			test(t, k.words)
		})
	}
}

// sumOf returns the big-endian sum.
func sumOf(words func([]byte) uint64, b []byte) uint16 { return bits.ReverseBytes16(Fold(words(b))) }

func sumGeneric(b []byte) uint16 { return bits.ReverseBytes16(Fold(wordsGeneric(b))) }

// TestVectorSumMatchesGenericAtEveryLengthAndAlignment computes the generic sums only once, because they are slow under the race
// detector, and moves the same bytes to every alignment.
func TestVectorSumMatchesGenericAtEveryLengthAndAlignment(t *testing.T) {
	eachVector(t, matchesGeneric)
}

func matchesGeneric(t *testing.T, words func([]byte) uint64) {
	const longest, alignments = 9000, 64
	for _, f := range fills {
		t.Run(f.name, func(t *testing.T) {
			text, buf := make([]byte, longest), make([]byte, longest+2*alignments)
			f.fill(text)
			f.fill(buf)
			want := make([]uint16, longest+1)
			for n := range want {
				want[n] = sumGeneric(text[:n])
			}
			for off := range alignments {
				copy(buf[off:], text)
				for n := leastLen; n <= longest; n++ {
					if got := sumOf(words, buf[off:off+n]); got != want[n] {
						t.Fatalf("%d bytes at %d: got %#x, want %#x", n, off, got, want[n])
					}
				}
			}
		})
	}
}

func TestVectorSumIsUsedOnlyForLongInputs(t *testing.T) {
	if !cpu.X86.HasAVX2 {
		t.Skip("this CPU has no AVX2")
	}
	for _, least := range []int{minLen512, minLen256} {
		for n, want := range map[int]bool{
			-1: false, 0: false, leastLen - 1: false, least - 1: false, least: true, 1400: true, MaxLen: true,
			maxVectorLen: true, maxVectorLen + 1: false, math.MaxInt: false,
		} {
			if (hasAVX512() || least == minLen256) && useVector(n) != want {
				t.Errorf("least length %d: useVector(%d) = %v, want %v", least, n, !want, want)
			}
		}
		was := cpu.X86.HasAVX512F
		t.Cleanup(func() { cpu.X86.HasAVX512F = was })
		cpu.X86.HasAVX512F = false
	}
}

func TestVectorSumMatchesReferenceOverManyIterations(t *testing.T) {
	eachVector(t, matchesReference)
}

func matchesReference(t *testing.T, words func([]byte) uint64) {
	for _, f := range fills {
		buf := make([]byte, 1<<20+200)
		f.fill(buf)
		for _, n := range []int{65535, 65536, 1<<20 + 1, 1<<20 + 129} {
			for off := range 3 {
				b := buf[off : off+n]
				if got, want := sumOf(words, b), slowSum(b, 0); !sameSum(got, want) {
					t.Errorf("%s, %d bytes at %d: got %#x, want %#x", f.name, n, off, got, want)
				}
			}
		}
	}
}

func TestVectorSumIsZeroOnlyForZeroBytes(t *testing.T) {
	eachVector(t, isZeroOnlyForZeroBytes)
}

func isZeroOnlyForZeroBytes(t *testing.T, words func([]byte) uint64) {
	b := make([]byte, 300)
	if got := words(b); got != 0 {
		t.Errorf("sum of zero bytes: got %#x, want 0", got)
	}
	for i := range b {
		b[i] = 1
		if words(b) == 0 {
			t.Errorf("byte %d set: got sum 0, want a sum other than 0", i)
		}
		b[i] = 0
	}
}

func TestSumWithoutRequiredCPUFeatureIsTheSame(t *testing.T) {
	b := make([]byte, 1401)
	fillRandom(rand.New(rand.NewPCG(7, 8)), b)
	want := Sum(b, 0)
	for _, flag := range []*bool{&cpu.X86.HasAVX512F, &cpu.X86.HasAVX512BW, &cpu.X86.HasAVX512VL, &cpu.X86.HasBMI2, &cpu.X86.HasAVX2} {
		was := *flag
		t.Cleanup(func() { *flag = was })
		*flag = false // and all before it
		if hasAVX512() {
			t.Error("hasAVX512() = true, want false")
		}
		if got := Sum(b, 0); got != want {
			t.Errorf("got sum %#x, want %#x as with all features", got, want)
		}
	}
	if useVector(len(b)) {
		t.Error("useVector() = true without AVX2 and AVX-512, want false")
	}
}

// BenchmarkWords measures the vector implementations and the generic one in turn, so that other load affects both. It reports the
// fastest run of each. It needs some hundred runs: -benchtime 500x. Mixed lengths vary by 32 bytes, so that
// branches are not predicted as well as with the equal lengths of a train.
func BenchmarkWords(b *testing.B) {
	for _, size := range []int{80, 96, 112, 128, 160, 192, 256, 320, 512, 1400, 8960} {
		for _, mixed := range []int{0, 32} {
			b.Run(fmt.Sprintf("%dB/mixed=%d", size, mixed), func(b *testing.B) { compareWords(b, benchTexts(size, mixed)) })
		}
	}
}

// benchTexts returns the packets of three trains, at random alignments.
func benchTexts(size, mixed int) [][]byte {
	r := rand.New(rand.NewPCG(9, 10))
	texts := make([][]byte, 135)
	buf := make([]byte, len(texts)*(size+128))
	fillRandom(r, buf)
	for i := range texts {
		at := i*(size+128) + r.IntN(64)
		texts[i] = buf[at : at+size-r.IntN(mixed+1)+mixed/2]
	}
	return texts
}

func compareWords(b *testing.B, texts [][]byte) {
	all := []struct {
		name      string
		supported bool
		words     func([]byte) uint64
	}{
		{"avx512", hasAVX512(), func(b []byte) uint64 { return words512(&b[0], len(b)) }},
		{"avx2", cpu.X86.HasAVX2, wordsAVX2},
		{"generic", true, wordsGeneric},
	}
	best := make([]time.Duration, len(all))
	sum := uint64(0)
	for b.Loop() {
		for i, k := range all {
			if !k.supported {
				continue
			}
			begun := time.Now()
			for _, text := range texts {
				sum += uint64(Fold(k.words(text)))
			}
			if took := time.Since(begun); best[i] == 0 || took < best[i] {
				best[i] = took
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, k := range all {
		b.ReportMetric(float64(best[i].Nanoseconds())/float64(len(texts)), k.name+"-ns/packet")
	}
}
