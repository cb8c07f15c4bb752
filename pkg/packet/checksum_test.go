// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"math/rand/v2"
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

func TestSumEqualsTheSlowSumAtEveryLength(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, 400)
	for n := range 300 {
		for off := range 9 {
			b := buf[off : off+n]
			for i := range b {
				b[i] = byte(rnd.Uint32())
				if n%3 == 0 {
					b[i] = 0xff
				}
			}
			initial := rnd.Uint64N(1 << 40)
			if got, want := Fold(Sum(b, initial)), slowSum(b, initial); !sameSum(got, want) {
				t.Fatalf("%d bytes at %d: sum %#x, want %#x", n, off, got, want)
			}
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
			t.Errorf("v%d: %#x, want %#x", VersionOf(ip), got, want)
		}
	}
}

func FuzzSum(f *testing.F) {
	f.Add([]byte{}, uint32(0))
	f.Add([]byte{1, 2, 3}, uint32(0xffff))
	f.Add(make([]byte, 130), uint32(1))
	f.Fuzz(func(t *testing.T, b []byte, initial uint32) {
		if got, want := Fold(Sum(b, uint64(initial))), slowSum(b, uint64(initial)); !sameSum(got, want) {
			t.Fatalf("sum %#x, want %#x", got, want)
		}
	})
}
