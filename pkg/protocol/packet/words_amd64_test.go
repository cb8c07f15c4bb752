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

func needs512(t testing.TB) {
	t.Helper()
	if !hasAVX512() {
		t.Skip("this CPU has no AVX-512 with BW, VL and BMI2")
	}
}

// sum512 returns the big-endian sum computed by words512, also for lengths at which Sum does not use it.
func sum512(b []byte) uint16 { return bits.ReverseBytes16(Fold(words512(&b[0], len(b)))) }

func sumGeneric(b []byte) uint16 { return bits.ReverseBytes16(Fold(wordsGeneric(b))) }

// TestVectorSumMatchesGenericAtEveryLengthAndAlignment computes the generic sums only once, because they are slow under the race
// detector, and moves the same bytes to every alignment.
func TestVectorSumMatchesGenericAtEveryLengthAndAlignment(t *testing.T) {
	needs512(t)
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
					if got := sum512(buf[off : off+n]); got != want[n] {
						t.Fatalf("%d bytes at %d: got %#x, want %#x", n, off, got, want[n])
					}
				}
			}
		})
	}
}

func TestVectorSumIsUsedOnlyForLongInputs(t *testing.T) {
	needs512(t)
	for n, want := range map[int]bool{
		-1: false, 0: false, leastLen - 1: false, minVectorLen - 1: false, minVectorLen: true, 1400: true, MaxLen: true,
		maxVectorLen: true, maxVectorLen + 1: false, math.MaxInt: false,
	} {
		if useVector(n) != want {
			t.Errorf("useVector(%d) = %v, want %v", n, !want, want)
		}
	}
}

func TestVectorSumMatchesReferenceOverManyIterations(t *testing.T) {
	needs512(t)
	for _, f := range fills {
		buf := make([]byte, 1<<20+200)
		f.fill(buf)
		for _, n := range []int{65535, 65536, 1<<20 + 1, 1<<20 + 129} {
			for off := range 3 {
				b := buf[off : off+n]
				if got, want := sum512(b), slowSum(b, 0); !sameSum(got, want) {
					t.Errorf("%s, %d bytes at %d: got %#x, want %#x", f.name, n, off, got, want)
				}
			}
		}
	}
}

func TestVectorSumIsZeroOnlyForZeroBytes(t *testing.T) {
	needs512(t)
	b := make([]byte, 300)
	if got := words512(&b[0], len(b)); got != 0 {
		t.Errorf("sum of zero bytes: got %#x, want 0", got)
	}
	for i := range b {
		b[i] = 1
		if words512(&b[0], len(b)) == 0 {
			t.Errorf("byte %d set: got sum 0, want a sum other than 0", i)
		}
		b[i] = 0
	}
}

func TestSumWithoutRequiredCPUFeatureIsGeneric(t *testing.T) {
	b := make([]byte, 1401)
	fillRandom(rand.New(rand.NewPCG(7, 8)), b)
	want := Sum(b, 0)
	for name, flag := range map[string]*bool{
		"AVX512F": &cpu.X86.HasAVX512F, "AVX512BW": &cpu.X86.HasAVX512BW, "AVX512VL": &cpu.X86.HasAVX512VL, "BMI2": &cpu.X86.HasBMI2,
	} {
		t.Run(name, func(t *testing.T) {
			was := *flag
			t.Cleanup(func() { *flag = was })
			*flag = false
			if hasAVX512() {
				t.Error("hasAVX512() = true, want false")
			}
			if got := Sum(b, 0); got != want {
				t.Errorf("got sum %#x, want %#x as with vectors", got, want)
			}
		})
	}
}

// BenchmarkWords measures the vector and the generic implementation in turn, so that other load affects both. It reports the
// fastest run of each, and their ratio. It needs some hundred runs: -benchtime 500x. Mixed lengths vary by 32 bytes, so that
// branches are not predicted as well as with the equal lengths of a train.
func BenchmarkWords(b *testing.B) {
	needs512(b)
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
	implementations := []func([]byte) uint64{wordsVector, wordsGeneric}
	best := []time.Duration{time.Hour, time.Hour}
	sum := uint64(0)
	for b.Loop() {
		for i, words := range implementations {
			begun := time.Now()
			for _, text := range texts {
				sum += uint64(Fold(words(text)))
			}
			best[i] = min(best[i], time.Since(begun))
		}
	}
	each := float64(len(texts))
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(best[0].Nanoseconds())/each, "ns/packet")
	b.ReportMetric(float64(best[1].Nanoseconds())/each, "generic-ns/packet")
	b.ReportMetric(float64(best[0])/float64(best[1]), "of-generic")
}
