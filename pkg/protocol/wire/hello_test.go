// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// sameAddrPort lets cmp compare endpoints that may be invalid.
var sameAddrPort = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

func sampleHello() Hello {
	return Hello{
		Gathers: true, NoReply: true, Probes: true,
		Own:   netip.MustParseAddrPort("192.0.2.1:51820"),
		Peer:  netip.MustParseAddrPort("[2001:db8::2]:7"),
		First: 61000, Last: 61999, Plan: []uint16{61001, 61000},
	}
}

func TestHelloLayout(t *testing.T) {
	for _, tc := range []struct {
		name string
		h    Hello
		want string
	}{
		{"sample", sampleHello(), `
			00727770 01 0d 3600 48ee 2ff2 6cca 0700
			00000000000000000000ffffc0000201 20010db8000000000000000000000002
			0200 49ee 48ee`},
		{"post-quantum", Hello{PostQuantum: true}, `
			00727770 01 40 3200 0000 0000 0000 0000
			00000000000000000000000000000000 00000000000000000000000000000000
			0000`},
		{"lanes", Hello{Lanes: 4, FirstLanePort: 61000}, `
			00727770 01 10 3600 0000 0000 0000 0000
			00000000000000000000000000000000 00000000000000000000000000000000
			0000 0400 48ee`},
		{"nothing known", Hello{}, `
			00727770 01 00 3200 0000 0000 0000 0000
			00000000000000000000000000000000 00000000000000000000000000000000
			0000`},
		{"heard, and a port without an address", Hello{Heard: true, Own: netip.AddrPortFrom(netip.IPv4Unspecified(), 258)}, `
			00727770 01 02 3200 0000 0000 0201 0000
			00000000000000000000000000000000 00000000000000000000000000000000
			0000`},
	} {
		want, err := hex.DecodeString(strings.Join(strings.Fields(tc.want), ""))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, AppendHello(nil, &tc.h)); diff != "" {
			t.Errorf("%s:\n%s", tc.name, diff)
		}
	}
}

func randomHello(r *rand.Rand) Hello {
	addr := func() netip.Addr {
		switch r.IntN(3) {
		case 0:
			return netip.Addr{}
		case 1:
			return netip.AddrFrom4([4]byte{byte(1 + r.IntN(255)), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
		}
		return netip.AddrFrom16([16]byte{0x20, byte(r.Uint32()), 15: byte(r.Uint32())})
	}
	h := Hello{
		Gathers: r.IntN(2) == 0, Heard: r.IntN(2) == 0, NoReply: r.IntN(2) == 0, Probes: r.IntN(2) == 0,
		Own: netip.AddrPortFrom(addr(), uint16(r.Uint32())), Peer: netip.AddrPortFrom(addr(), uint16(r.Uint32())),
	}
	if r.IntN(2) == 0 {
		h.First = uint16(1 + r.IntN(65535))
		h.Last = h.First + uint16(r.IntN(65536-int(h.First)))
	}
	if r.IntN(2) == 0 {
		h.Lanes, h.FirstLanePort = uint16(1+r.IntN(65535)), uint16(r.Uint32())
	}
	for range r.IntN(MaxHelloPorts + 1) {
		h.Plan = append(h.Plan, uint16(1+r.IntN(65535)))
	}
	return h
}

func TestHelloRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var got Hello // used again and again, as a receiver does
	for range 2000 {
		h := randomHello(r)
		b := AppendHello([]byte("before"), &h)[len("before"):]
		if len(b) > MaxHelloSize || !IsHello(b) {
			t.Fatalf("%d bytes, IsHello %v", len(b), IsHello(b))
		}
		b = append(b, make([]byte, PaddedLen(len(b), 0)-len(b))...)
		if err := ParseHello(b, &got); err != nil {
			t.Fatalf("%+v: got error %v, want none", h, err)
		}
		plan := got.Plan
		if len(plan) == 0 {
			got.Plan = nil
		}
		if diff := cmp.Diff(h, got, sameAddrPort); diff != "" {
			t.Fatal(diff)
		}
		got.Plan = plan
	}
}

func TestTruncatedHelloIsMalformed(t *testing.T) {
	h := sampleHello()
	b := AppendHello(nil, &h)
	for n := range b {
		if err := ParseHello(b[:n], &h); !errors.Is(err, ErrHelloMalformed) {
			t.Errorf("%d bytes of %d: got error %v, want %v", n, len(b), err, ErrHelloMalformed)
		}
	}
}

func TestInconsistentHelloIsMalformed(t *testing.T) {
	put := func(at int, v ...byte) func([]byte) { return func(b []byte) { copy(b[at:], v) } }
	for name, corrupt := range map[string]func([]byte){
		"an IPv4 packet":                   put(0, 0x45),
		"another magic":                    put(3, 'q'),
		"version 0":                        put(4, 0),
		"length of less than the fields":   put(6, 49),
		"length of less than the plan":     put(6, 53),
		"length beyond the message":        put(6, 65),
		"huge length":                      put(6, 0xff, 0xff),
		"range that ends before it begins": put(8, 0x30, 0xf2),
		"range that begins at 0":           put(8, 0, 0),
		"range that ends at 0":             put(10, 0, 0),
		"plan longer than the message":     put(48, 3),
		"plan longer than any":             put(48, 65),
		"huge plan":                        put(48, 0xff, 0xff),
		"planned port 0":                   put(50, 0, 0),
	} {
		h := sampleHello()
		b := append(AppendHello(nil, &h), make([]byte, 10)...)
		corrupt(b)
		if err := ParseHello(b, &h); !errors.Is(err, ErrHelloMalformed) {
			t.Errorf("%s: got error %v, want %v", name, err, ErrHelloMalformed)
		}
	}
}

func TestLaterHelloVersionIsNotMalformed(t *testing.T) {
	h := sampleHello()
	for _, b := range [][]byte{{0, 'r', 'w', 'p', 2}, append([]byte("\x00rwp\xff"), make([]byte, 100)...)} {
		if err := ParseHello(b, &h); !errors.Is(err, ErrHelloVersion) {
			t.Errorf("%x: got error %v, want %v", b, err, ErrHelloVersion)
		}
	}
}

func TestLaterHelloRevisionIsParsed(t *testing.T) {
	want := sampleHello()
	want.Lanes, want.FirstLanePort = 8, 61000
	b := AppendHello(nil, &want)
	b = append(b, "what else there may be"...)
	b[helloLengthAt] = byte(len(b))
	b[flagsAt] |= 0xa0
	var got Hello
	if err := ParseHello(b, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, sameAddrPort); diff != "" {
		t.Error(diff)
	}
}

func TestAppendHelloTruncatesPlan(t *testing.T) {
	h := Hello{Plan: slices.Repeat([]uint16{9}, MaxHelloPorts+1)}
	var got Hello
	if err := ParseHello(AppendHello(nil, &h), &got); err != nil || len(got.Plan) != MaxHelloPorts {
		t.Errorf("%d ports, %v", len(got.Plan), err)
	}
	if MaxHelloPorts != spread.MaxPorts {
		t.Errorf("a hello holds %d ports, a peer uses %d", MaxHelloPorts, spread.MaxPorts)
	}
}

func TestHelloIsNoIPPacket(t *testing.T) {
	if helloMagic[0]>>4 != 0 {
		t.Errorf("got version nibble %d, want 0", helloMagic[0]>>4)
	}
	for _, b := range [][]byte{nil, {0}, []byte("\x00rw"), []byte("\x45rwp"), make([]byte, 32)} {
		if IsHello(b) {
			t.Errorf("%x is accepted for a hello", b)
		}
	}
}

func TestHelloAllocatesNothing(t *testing.T) {
	h := randomHello(rand.New(rand.NewPCG(5, 6)))
	b := make([]byte, 0, MaxHelloSize)
	got := Hello{Plan: make([]uint16, 0, MaxHelloPorts)}
	if n := testing.AllocsPerRun(100, func() {
		if err := ParseHello(AppendHello(b, &h), &got); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// FuzzParseHello checks that what is accepted says the same when it is sent on, and that parsing stays in bounds.
func FuzzParseHello(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 8 {
		h := randomHello(r)
		f.Add(AppendHello(nil, &h))
	}
	sample := sampleHello()
	whole := AppendHello(nil, &sample)
	f.Add(whole[:len(whole)-1])
	f.Add(append(slices.Clone(whole), make([]byte, 16)...))
	f.Add([]byte("\x00rwp\x02"))
	f.Add([]byte{0x45, 0, 0, 20})
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again Hello
		err := ParseHello(b, &h)
		if err != nil {
			if !errors.Is(err, ErrHelloMalformed) && (!errors.Is(err, ErrHelloVersion) || !IsHello(b)) {
				t.Errorf("%x: got error %v", b, err)
			}
			return
		}
		if !IsHello(b) || len(h.Plan) > MaxHelloPorts || h.First > h.Last {
			t.Errorf("%x is %+v", b, h)
		}
		if err := ParseHello(AppendHello(nil, &h), &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(h, again, sameAddrPort); diff != "" {
			t.Error(diff)
		}
	})
}
