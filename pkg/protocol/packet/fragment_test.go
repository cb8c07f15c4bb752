// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/net/ipv4"
)

// datagram4 returns an IPv4 packet with those options and flags, and random data.
func datagram4(rng *rand.Rand, options []byte, flags uint16, size int) []byte {
	ip := make([]byte, IPv4HeaderLen+len(options)+size)
	fillRandom(rng, ip)
	ip[0] = 0x40 | byte(IPv4HeaderLen+len(options))/4
	IPv4(ip).SetTotalLen(len(ip))
	putBE16(ip[6:8], flags)
	copy(ip[IPv4HeaderLen:], options)
	return ip
}

// fragmentsOf splits ip, and checks that each fragment is a valid packet that fits.
func fragmentsOf(t *testing.T, ip []byte, limit int) (all [][]byte) {
	t.Helper()
	size := len(ip) - IPv4(ip).HeaderLen()
	for at := 0; at < size; {
		dst := bytes.Repeat([]byte{0xa5}, limit)
		n, next := WriteFragment(dst, ip, at, limit)
		if m, ok := Length(dst[:n]); !ok || m != n || next <= at {
			t.Fatalf("fragment at %d: got length %d of %d, next at %d", at, m, n, next)
		}
		if slowSum(dst[:IPv4(dst).HeaderLen()], 0) != 0 {
			t.Fatalf("fragment at %d: wrong header checksum", at)
		}
		all = append(all, dst[:n])
		at = next
	}
	return all
}

// reassemble joins fragments by their offsets (RFC 815), with an independent parser. more is the last one's MF, and base
// the first one's offset.
func reassemble(t *testing.T, fragments [][]byte) (data []byte, base int, more bool) {
	t.Helper()
	end := 0
	for i, f := range fragments {
		h, err := ipv4.ParseHeader(f)
		if err != nil {
			t.Fatal(err)
		}
		at := h.FragOff & ipv4OffsetMask * 8
		if i == 0 {
			base, end = at, at
		}
		if at != end {
			t.Fatalf("fragment %d: got offset %d, want %d", i, at, end)
		}
		if more = h.Flags&ipv4.MoreFragments != 0; !more && i < len(fragments)-1 {
			t.Fatalf("fragment %d has no MF", i)
		}
		data = append(data, f[h.Len:h.TotalLen]...)
		end += h.TotalLen - h.Len
	}
	return data, base, more
}

func checkReassembly(t *testing.T, ip []byte, limit int) [][]byte {
	t.Helper()
	all := fragmentsOf(t, ip, limit)
	data, base, more := reassemble(t, all)
	if !bytes.Equal(data, ip[IPv4(ip).HeaderLen():]) {
		t.Fatal("the reassembled data differ")
	}
	if want := int(be16(ip[6:8])&ipv4OffsetMask) * 8; base != want || more != (ip[6]&0x20 != 0) {
		t.Fatalf("got offset %d and MF %v, want %d and that of the original", base, more, want)
	}
	for _, f := range all {
		for _, same := range [][2]int{{1, 2}, {4, 6}, {8, 10}, {12, 20}} { // TOS, ID, TTL and protocol, addresses
			if !bytes.Equal(f[same[0]:same[1]], ip[same[0]:same[1]]) {
				t.Fatalf("bytes %d to %d of the header differ", same[0], same[1])
			}
		}
	}
	return all
}

func TestFragmentsReassembleToOriginal(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	for range 2000 {
		ip := datagram4(rng, make([]byte, 4*rng.IntN(11)), 0, 1+rng.IntN(9000))
		limit := IPv4MinMTU + rng.IntN(3000)
		for _, f := range checkReassembly(t, ip, limit) {
			if len(f) > limit {
				t.Fatalf("fragment of %d bytes, want at most %d", len(f), limit)
			}
		}
	}
}

func TestFragmentOfFragmentKeepsItsPlace(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 3))
	for range 200 {
		ip := datagram4(rng, nil, 0, 8000+rng.IntN(1000))
		var twice [][]byte
		for _, f := range fragmentsOf(t, ip, 1500) {
			twice = append(twice, checkReassembly(t, f, 300+rng.IntN(1000))...)
		}
		if data, _, more := reassemble(t, twice); more || !bytes.Equal(data, ip[IPv4HeaderLen:]) {
			t.Fatal("the data that were fragmented twice differ")
		}
	}
}

func TestLaterFragmentsHaveCopiedOptionsOnly(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	const recordRoute, sourceRoute = 7, 131
	for _, tt := range []struct {
		name          string
		options, want []byte
	}{
		{"none is copied", []byte{recordRoute, 7, 4, 1, 2, 3, 4, 0}, nil},
		{"one is copied", []byte{1, sourceRoute, 7, 4, 1, 2, 3, 4}, []byte{sourceRoute, 7, 4, 1, 2, 3, 4, 0}},
		{"behind another", []byte{recordRoute, 3, 4, 0x82, 3, 9, 1, 0}, []byte{0x82, 3, 9, 0}},
		{"second is copied", []byte{recordRoute, 3, 4, 0x88, 4, 9, 9, 0}, []byte{0x88, 4, 9, 9}},
		{"malformed length", []byte{sourceRoute, 3, 9, 0x88, 9, 1, 1, 1}, []byte{sourceRoute, 3, 9, 0}},
		{"zero length", []byte{sourceRoute, 0, 0, 0}, nil},
		{"no length", []byte{1, 1, 1, sourceRoute}, nil},
	} {
		all := checkReassembly(t, datagram4(rng, tt.options, 0, 500), 200)
		if got := all[0][IPv4HeaderLen:IPv4(all[0]).HeaderLen()]; !bytes.Equal(got, tt.options) {
			t.Errorf("%s: the first fragment has % x, want % x", tt.name, got, tt.options)
		}
		for _, f := range all[1:] {
			if got := f[IPv4HeaderLen:IPv4(f).HeaderLen()]; !bytes.Equal(got, tt.want) {
				t.Errorf("%s: a later fragment has % x, want % x", tt.name, got, tt.want)
			}
		}
	}
}

func FuzzWriteFragment(f *testing.F) {
	rng := rand.New(rand.NewPCG(4, 3))
	f.Add(datagram4(rng, nil, 0, 900), uint16(200))
	f.Add(datagram4(rng, []byte{7, 3, 4, 0x88, 4, 9, 9, 0}, IPv4MoreFragments|100, 904), uint16(0))
	f.Fuzz(func(t *testing.T, ip []byte, limit uint16) {
		n, ok := Length(ip)
		if !ok || VersionOf(ip) != Version4 || IPv4(ip).DontFragment() {
			return
		}
		ip = slices.Clone(ip[:n])
		size := n - IPv4(ip).HeaderLen()
		offset := int(be16(ip[6:8])&ipv4OffsetMask) * 8
		if offset+size > MaxLen || ip[6]&0x20 != 0 && size%8 != 0 || size == 0 {
			return // such a fragment cannot be reassembled
		}
		checkReassembly(t, ip, IPv4MinMTU+int(limit)%9000)
	})
}
