// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// header returns a bare IP header with that TOS byte or traffic class, around which everything else is noise.
func header(rng *rand.Rand, v Version, tos uint8) []byte {
	ip := make([]byte, IPv6HeaderLen)
	for i := range ip {
		ip[i] = byte(rng.Uint32())
	}
	if v == Version6 {
		ip[0], ip[1] = 0x60|tos>>4, tos<<4|ip[1]&0x0f
		IPv6(ip).SetPayloadLen(0)
		return ip
	}
	ip = ip[:IPv4HeaderLen]
	ip[0], ip[1] = 0x45, tos
	IPv4(ip).SetTotalLen(len(ip))
	IPv4(ip).SetChecksum(0)
	IPv4(ip).SetChecksum(Checksum(ip))
	return ip
}

func TestECNIsLowBitsOfTrafficClass(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for tos := range 256 {
		for _, v := range []Version{Version4, Version6} {
			if got := ECNOf(header(rng, v, uint8(tos))); got != ECN(tos%4) {
				t.Errorf("version %d, TOS %#x: got %d, want %d", v, tos, got, tos%4)
			}
		}
	}
	for _, p := range [][]byte{nil, {0x45}, {0x6f}, {0x55, 0xff}, {0, 0xff}} {
		if got := ECNOf(p); got != NotECT {
			t.Errorf("% x: got %d, want none", p, got)
		}
	}
}

func TestOuterECNCopiesFieldButNotCE(t *testing.T) {
	for inner, want := range map[ECN]ECN{NotECT: NotECT, ECT0: ECT0, ECT1: ECT1, CE: ECT0} {
		if got := inner.Outer(); got != want {
			t.Errorf("inner %d: outer %d, want %d", inner, got, want)
		}
	}
}

// TestSetCEChangesNothingElse compares with a header made anew, checksum included, over many random ones.
func TestSetCEChangesNothingElse(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for i := range 1 << 14 {
		tos := uint8(i)
		for _, v := range []Version{Version4, Version6} {
			ip := header(rng, v, tos)
			want := bytes.Clone(ip)
			switch {
			case ECNOfTOS(tos) == NotECT:
			case v == Version6:
				want[1] |= 0x30
			default:
				want[1] |= 3
				IPv4(want).SetChecksum(0)
				IPv4(want).SetChecksum(Checksum(want))
			}
			if SetCE(ip); !bytes.Equal(ip, want) {
				t.Fatalf("version %d, TOS %#x:\n% x, want\n% x", v, tos, ip, want)
			}
		}
	}
}

func TestSetCEKeepsWrongChecksumWrong(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for wrong := 1; wrong < 0xffff; wrong += 101 {
		ip := IPv4(header(rng, Version4, uint8(ECT0)))
		sum := ip.Checksum() ^ uint16(wrong)
		if sum^ip.Checksum() == 0xffff {
			continue // the other zero of ones' complement
		}
		ip.SetChecksum(sum)
		if SetCE(ip); ip.ChecksumOK() {
			t.Fatalf("a checksum wrong by %#x came out right", wrong)
		}
	}
}

func FuzzSetCE(f *testing.F) {
	rng := rand.New(rand.NewPCG(4, 4))
	f.Add(header(rng, Version4, 1))
	f.Add(header(rng, Version6, 2))
	f.Fuzz(func(t *testing.T, ip []byte) {
		n, ok := Length(ip)
		if !ok {
			return
		}
		ip = ip[:n]
		before, valid := ECNOf(ip), ip[0]>>4 == 6 || Checksum(ip[:IPv4(ip).HeaderLen()]) == 0
		SetCE(ip)
		if after := ECNOf(ip); (after == CE) != (before != NotECT) {
			t.Fatalf("%d became %d", before, after)
		}
		if valid && ip[0]>>4 == 4 && Checksum(ip[:IPv4(ip).HeaderLen()]) != 0 {
			t.Fatal("a right checksum became wrong")
		}
		once := bytes.Clone(ip)
		if SetCE(ip); !bytes.Equal(ip, once) {
			t.Fatal("a second mark changes the packet")
		}
	})
}
