// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"
)

// walls are times all over a second, its ends included, and at random.
func walls() []time.Time {
	at := []time.Time{time.Unix(0, 0), time.Unix(1000, 999_999_999), time.Unix(1<<33, 989_855_743), time.Unix(1<<33, 989_855_744)}
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		at = append(at, time.Unix(r.Int64N(1<<34), r.Int64N(int64(time.Second))))
	}
	return at
}

func TestSignedTimestampStaysATAI64NLabel(t *testing.T) {
	for _, wall := range walls() {
		bare := NewTimestamp(wall)
		signed := bare.Signed()
		if !signed.IsSigned() || signed.WithLowBits(0) != bare.WithLowBits(0) {
			t.Fatalf("Signed of %x = %x, want a signed timestamp with the same high bits", bare[:], signed[:])
		}
		if nanos := binary.BigEndian.Uint32(signed[8:]); nanos >= uint32(time.Second) {
			t.Fatalf("signed timestamp %x has %d ns, want less than a second", signed[:], nanos)
		}
	}
}

// TestSigningKeepsTheOrderOfAClock mixes signed and bare timestamps and such that name a key, as an upgrade or a downgrade of the initiator does.
func TestSigningKeepsTheOrderOfAClock(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var clock Clock
	var last Timestamp
	wall := time.Unix(1_800_000_000, 0)
	for range 2000 {
		wall = wall.Add(time.Duration(r.Int64N(int64(40*time.Millisecond))) - 10*time.Millisecond)
		next := clock.Now(wall)
		switch r.IntN(4) {
		case 0:
			next = next.Signed()
		case 1:
			next = next.Naming(uint16(r.IntN(1 << 16)))
		case 2: // another process goes on
			clock = Clock{}
			clock.Resume(last)
			next = clock.Now(wall)
		}
		if !next.After(last) {
			t.Fatalf("timestamp %x is not after the previous %x", next[:], last[:])
		}
		last = next
	}
}

func TestStockTimestampIsNeverSigned(t *testing.T) {
	if (Timestamp{}).IsSigned() {
		t.Error("IsSigned of the zero timestamp = true, want false")
	}
	for _, wall := range walls() {
		// The kernel rounds down to a power of two that divides 2^24 or exceeds it; wireguard-go masks 24 bits.
		if stock := NewTimestamp(wall).WithLowBits(0); stock.IsSigned() {
			t.Fatalf("IsSigned of %x, as other implementations send it = true, want false", stock[:])
		}
	}
}

func TestNamingTimestampStaysATAI64NLabel(t *testing.T) {
	for _, wall := range walls() {
		bare := NewTimestamp(wall)
		for _, id := range []uint16{0, 1, 0x7770, 0x8000, 0xffff} {
			named := bare.Naming(id)
			if got, ok := named.Named(); !ok || got != id || named.IsSigned() || named.WithLowBits(0) != bare.WithLowBits(0) {
				t.Fatalf("Naming(%#x) of %x = %x, which names %#x, %v", id, bare[:], named[:], got, ok)
			}
			if nanos := binary.BigEndian.Uint32(named[8:]); nanos >= uint32(time.Second) {
				t.Fatalf("timestamp %x has %d ns, want less than a second", named[:], nanos)
			}
		}
		if _, ok := bare.Signed().Named(); ok {
			t.Fatal("a signed timestamp names a key")
		}
		if _, ok := bare.WithLowBits(0).Named(); ok {
			t.Fatal("a stock timestamp names a key")
		}
	}
}
