// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"encoding/hex"
	"sync"
	"testing"
	"time"
)

func TestTimestampIsTAI64N(t *testing.T) {
	for _, tc := range []struct {
		at   time.Time
		want string
	}{
		{time.Unix(0, 0), "400000000000000a00000000"},
		{time.Unix(0, 1), "400000000000000a00000001"},
		{time.Unix(-11, 0), "3fffffffffffffff00000000"},
		{time.Unix(1, 999_999_999), "400000000000000b3b9ac9ff"},
		// The label that https://cr.yp.to/libtai/tai64.html gives for 08:07:09 TAI, here without leap seconds.
		{time.Date(1992, 6, 2, 8, 6, 59, 0, time.UTC), "400000002a2b2c2d00000000"},
		{time.Date(2106, 2, 7, 6, 28, 16, 0, time.UTC), "400000010000000a00000000"}, // 2^32 s
	} {
		got := NewTimestamp(tc.at)
		if hex.EncodeToString(got[:]) != tc.want {
			t.Errorf("%v: got %x, want %s", tc.at, got[:], tc.want)
		}
	}
	var epoch uint64 = tai64Epoch
	if epoch != 4611686018427387914 {
		t.Errorf("got epoch %d, want 4611686018427387914", epoch)
	}
}

func TestAfterOrdersBySecondsThenNanoseconds(t *testing.T) {
	at := func(s, ns int64) Timestamp { return NewTimestamp(time.Unix(s, ns)) }
	for _, tc := range []struct {
		a, b Timestamp
		want bool
	}{
		{at(5, 0), at(5, 0), false},
		{at(5, 1), at(5, 0), true},
		{at(5, 0), at(5, 1), false},
		{at(6, 0), at(5, 999_999_999), true},
		{at(256, 0), at(255, 0), true},
		{at(255, 0), at(256, 0), false},
		{at(0, 0), Timestamp{}, true},
		{Timestamp{}, Timestamp{}, false},
	} {
		if got := tc.a.After(tc.b); got != tc.want {
			t.Errorf("%x.After(%x) = %v, want %v", tc.a[:], tc.b[:], got, tc.want)
		}
	}
	if !(Timestamp{}).IsZero() || at(0, 0).IsZero() {
		t.Error("IsZero of the zero timestamp is false, or of another one true")
	}
}

func TestClockNeverRepeatsNorGoesBack(t *testing.T) {
	start := time.Unix(1000, 0)
	const ms = time.Millisecond
	for _, tc := range []struct {
		name  string
		walls []time.Duration // after start
		want  []string
	}{
		{
			"fine time is withheld",
			[]time.Duration{0, 17 * ms, 999 * ms},
			[]string{"40000000000003f200000000", "40000000000003f201000000", "40000000000003f23b000000"},
		},
		{
			"a standing clock",
			[]time.Duration{0, 0, 1, 16 * ms},
			[]string{"40000000000003f200000000", "40000000000003f201000000", "40000000000003f202000000", "40000000000003f203000000"},
		},
		{
			"a clock that goes back and catches up",
			[]time.Duration{0, -time.Hour, -time.Second, 100 * ms},
			[]string{"40000000000003f200000000", "40000000000003f201000000", "40000000000003f202000000", "40000000000003f205000000"},
		},
		{
			"over the end of a second",
			[]time.Duration{999 * ms, 999 * ms, 998 * ms, time.Second},
			[]string{"40000000000003f23b000000", "40000000000003f300000000", "40000000000003f301000000", "40000000000003f302000000"},
		},
	} {
		var clock Clock
		for i, wall := range tc.walls {
			got := clock.Now(start.Add(wall))
			if hex.EncodeToString(got[:]) != tc.want[i] {
				t.Errorf("%s: step %d: got %x, want %s", tc.name, i, got[:], tc.want[i])
			}
		}
	}
}

func TestClockResumesAfterAnother(t *testing.T) {
	for _, ns := range []int64{0, 500_000_000, 999_999_999} {
		wall := time.Unix(1000, ns)
		at := NewTimestamp(wall)
		for _, last := range []Timestamp{{}, at, at.Signed(), at.WithLowBits(lowMask)} {
			for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
				var clock Clock
				clock.Resume(last)
				clock.Resume(Timestamp{}) // an earlier one says nothing
				got := clock.Now(wall.Add(ahead))
				if !got.After(last) || got.LowBits() != 0 || ahead > 0 && got != NewTimestamp(wall.Add(ahead)).WithLowBits(0) {
					t.Errorf("last %x, clock ahead by %v: got %x, want a later timestamp with low bits 0", last[:], ahead, got[:])
				}
			}
		}
	}
}

func TestClockIsWithinAGranuleOfTheWallClock(t *testing.T) {
	for ns := int64(0); ns < 1e9; ns += 1_234_567 {
		wall := time.Unix(1000, ns)
		var clock Clock
		got := clock.Now(wall)
		if got.After(NewTimestamp(wall)) || !got.next().After(NewTimestamp(wall)) || got.LowBits() != 0 {
			t.Fatalf("time %v: got %x, want the rounded-down timestamp", wall, got[:])
		}
	}
}

func TestLowBitsDoNotChangeTheOrder(t *testing.T) {
	var clock Clock
	wall := time.Unix(1000, 0)
	last := clock.Now(wall).WithLowBits(lowMask)
	for range 200 {
		bare := clock.Now(wall)
		marked := bare.WithLowBits(0x123456)
		if marked.LowBits() != 0x123456 || marked.WithLowBits(0) != bare {
			t.Fatalf("WithLowBits of %x = %x, want the same high bits and 0x123456", bare[:], marked[:])
		}
		if !marked.After(last) || !bare.After(last) {
			t.Fatalf("timestamp %x is not after the previous %x", marked[:], last[:])
		}
		last = bare.WithLowBits(0xff_ffffff)
		if last.LowBits() != lowMask || !clock.last.next().After(last) {
			t.Fatalf("the timestamp after %x with the largest low bits is not later", last[:])
		}
	}
}

func TestClockConcurrentTimestampsAreDistinct(t *testing.T) {
	var clock Clock
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[Timestamp]bool{}
	for range 4 {
		wg.Go(func() {
			for range 100 {
				now := clock.Now(time.Unix(1000, 0))
				mu.Lock()
				seen[now] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != 400 {
		t.Errorf("got %d distinct timestamps, want 400", len(seen))
	}
}
