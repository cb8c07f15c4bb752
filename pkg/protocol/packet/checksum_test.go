// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

// slowSum is RFC 1071 as the RFC words it.
func slowSum(b []byte, initial uint64) uint16 {
	sum := initial % 0xffff
	for i, v := range b {
		if i%2 == 0 {
			sum += uint64(v) << 8
		} else {
			sum += uint64(v)
		}
	}
	return uint16(sum % 0xffff)
}

func sameSum(a, b uint16) bool { return a%0xffff == b%0xffff }

// fills are contents that carry in different ways. None is zero around the bytes that are summed: one too many would
// show.
var fills = []struct {
	name string
	fill func(b []byte)
}{
	{"random", func(b []byte) { fillRandom(rand.New(rand.NewPCG(5, 6)), b) }},
	{"ones", func(b []byte) { copy(b, bytes.Repeat([]byte{0xff}, len(b))) }},
}

func fillRandom(r *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// TestSumMatchesReferenceAtEveryLengthAndAlignment lets the slow sum grow with the length, byte by byte.
func TestSumMatchesReferenceAtEveryLengthAndAlignment(t *testing.T) {
	const longest, alignments = 9000, 64
	step := 1
	if testing.Short() { // under the race detector, which makes minutes of it and has nothing to find
		step = 9
	}
	for _, f := range fills {
		t.Run(f.name, func(t *testing.T) {
			buf := make([]byte, longest+2*alignments)
			f.fill(buf)
			for off := 0; off < alignments; off += step {
				want := uint64(0)
				for n := range longest + 1 {
					if got := Fold(Sum(buf[off:off+n], 0)); !sameSum(got, uint16(want%0xffff)) {
						t.Fatalf("%d bytes at %d: sum %#x, want %#x", n, off, got, want%0xffff)
					}
					want += uint64(buf[off+n]) << (8 * (1 - n%2))
				}
			}
		})
	}
}

func TestSumAddsToInitialValue(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 300)
	fillRandom(rnd, b)
	for n := range b {
		initial := rnd.Uint64N(1 << 40)
		if got, want := Fold(Sum(b[:n], initial)), slowSum(b[:n], initial); !sameSum(got, want) {
			t.Errorf("%d bytes and %#x: sum %#x, want %#x", n, initial, got, want)
		}
	}
}

func TestSumAllocatesNothing(t *testing.T) {
	b := make([]byte, 1401)
	for _, n := range []int{0, 64, 1400, 1401} {
		sum := uint64(0)
		if got := testing.AllocsPerRun(100, func() { sum = Sum(b[:n], sum&0xffff) }); got != 0 {
			t.Errorf("%d bytes: got %v allocations, want 0", n, got)
		}
	}
}

func TestFoldOnlyMapsZeroToZero(t *testing.T) {
	for _, s := range []uint64{1, 0xffff, 0x10000, 0xffff0000, 1 << 63, ^uint64(0), 0xffffffff00000000} {
		if got := Fold(s); got == 0 || !sameSum(got, uint16(s%0xffff)) {
			t.Errorf("Fold(%#x) = %#x", s, got)
		}
	}
	if Fold(0) != 0 {
		t.Error("Fold(0) != 0")
	}
}

func TestSumIsZeroOnlyForZeroBytes(t *testing.T) {
	b := make([]byte, 200)
	if Sum(b, 0) != 0 {
		t.Error("sum of zero bytes is not 0")
	}
	for i := range b {
		b[i] = 0xff
	}
	if Fold(Sum(b, 0)) != 0xffff {
		t.Error("sum of ones is not negative zero")
	}
}

func TestChecksumOfTheExampleInRFC1071(t *testing.T) {
	b := []byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}
	if got := Checksum(b); got != 0x220d {
		t.Errorf("checksum %#x, want 0x220d", got)
	}
}

func TestUDPChecksumIsNeverZero(t *testing.T) {
	if got := UDPChecksum(0xffff); got != 0xffff {
		t.Errorf("checksum of a sum of 0xffff is %#x, want 0xffff", got)
	}
	if got := UDPChecksum(0x1234); got != 0xedcb {
		t.Errorf("checksum %#x, want 0xedcb", got)
	}
}

func TestPseudoSumEqualsTheSumOfAWrittenPseudoHeader(t *testing.T) {
	for _, ip := range [][]byte{udp4(1000, 53), udp6(1000, 53)} {
		var pseudo []byte
		if VersionOf(ip) == Version4 {
			pseudo = append(pseudo, ip[12:20]...)
		} else {
			pseudo = append(pseudo, ip[8:40]...)
		}
		pseudo = append(pseudo, 0, 0, 0x12, 0x34, 0, 0, 0, byte(UDP))
		if got, want := Fold(PseudoSum(ip, UDP, 0x1234)), slowSum(pseudo, 0); !sameSum(got, want) {
			t.Errorf("v%d: got %#x, want %#x", VersionOf(ip), got, want)
		}
	}
}

func FuzzSum(f *testing.F) {
	for _, n := range []int{0, 1, 3, 127, 128, 129, 130, 255, 1400, 1401, 9001} {
		b := make([]byte, n)
		fillRandom(rand.New(rand.NewPCG(uint64(n), 1)), b)
		f.Add(b, uint32(n), uint8(n))
	}
	f.Add(bytes.Repeat([]byte{0xff}, 1400), uint32(0xffffffff), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, initial uint32, off uint8) {
		b = slices.Insert(bytes.Clone(b), 0, bytes.Repeat([]byte{0xa5}, int(off%64))...)[off%64:]
		want := slowSum(b, uint64(initial))
		if got := Fold(Sum(b, uint64(initial))); !sameSum(got, want) {
			t.Errorf("sum %#x, want %#x", got, want)
		}
		if got := Fold(uint64(initial) + uint64(bits.ReverseBytes16(Fold(wordsGeneric(b))))); !sameSum(got, want) {
			t.Errorf("without vectors: sum %#x, want %#x", got, want)
		}
	})
}
