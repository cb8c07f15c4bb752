// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
)

func addr4(n uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}

func TestLimiterAllowsFiveAtOnceAndTwentyPerSecond(t *testing.T) {
	var l Limiter
	src := netip.MustParseAddr("192.0.2.1")
	allowed := 0
	for range 100 {
		if l.Allow(t0, src) {
			allowed++
		}
	}
	if allowed != 5 {
		t.Errorf("got %d messages allowed at once, want 5", allowed)
	}
	for now := t0 + ms; now <= t0+10*sec; now += ms {
		if l.Allow(now, src) {
			allowed++
		}
	}
	if allowed != 205 {
		t.Errorf("got %d messages allowed in ten seconds, want 205", allowed)
	}
}

func TestLimiterDistinguishesSources(t *testing.T) {
	tests := []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.2", false},
		{"192.0.2.1", "::ffff:192.0.2.1", true},
		{"2001:db8:0:1::1", "2001:db8:0:1:ffff::2", true},
		{"2001:db8:0:1::1", "2001:db8:0:2::1", false},
		{"fe80::1%eth0", "fe80::1", true},
		{"0.0.0.1", "0:0:0:1::", false},
	}
	for _, tt := range tests {
		var l Limiter
		for l.Allow(t0, netip.MustParseAddr(tt.a)) {
		}
		if rejected := !l.Allow(t0, netip.MustParseAddr(tt.b)); rejected != tt.same {
			t.Errorf("after %s used up its bucket: got %s rejected %v, want %v", tt.a, tt.b, rejected, tt.same)
		}
	}
}

// Workers read the clock on their own: a message may be a little older than the last.
func TestLimiterToleratesClockGoingBack(t *testing.T) {
	var l Limiter
	src, other := addr4(1), addr4(2)
	if !l.Allow(t0+sec, other) || !l.Allow(t0, other) {
		t.Error("Allow with an older time than the previous call's = false, want true")
	}
	for l.Allow(t0+sec, src) {
	}
	if l.Allow(t0, src) {
		t.Error("Allow with a time before the bucket was emptied = true, want false")
	}
	allowed := 0
	for range 5 {
		if l.Allow(t0+sec+handshakeCost, src) {
			allowed++
		}
	}
	if allowed != 1 {
		t.Errorf("got %d messages allowed 50 ms after the bucket was empty, want 1", allowed)
	}
}

func TestLimiterRefusesAnInvalidSource(t *testing.T) {
	var l Limiter
	if l.Allow(t0, netip.Addr{}) {
		t.Error("Allow of the zero address = true, want false")
	}
}

func TestLimiterIsBoundedAndFailsClosed(t *testing.T) {
	var l Limiter
	for i := range uint32(LimiterSources) {
		if !l.Allow(t0, addr4(i)) {
			t.Fatalf("Allow of source %d, within the limit = false, want true", i)
		}
	}
	if l.Allow(t0, addr4(LimiterSources)) {
		t.Error("Allow of a new source beyond the limit = true, want false")
	}
	if !l.Allow(t0, addr4(0)) {
		t.Error("Allow of a known source = false, want true")
	}
	if l.Len() != LimiterSources {
		t.Errorf("got %d sources, want %d", l.Len(), LimiterSources)
	}
	if !l.Allow(t0+limiterIdle, addr4(LimiterSources)) {
		t.Error("Allow of a new source after all others were idle = false, want true")
	}
	if l.Len() != 1 {
		t.Errorf("got %d sources after a sweep, want 1", l.Len())
	}
}

// bottomless is the limiter's reference model: it never evicts and counts in fractions of a message.
type bottomless map[netip.Prefix]*struct{ level, at float64 }

func (b bottomless) allow(now int64, addr netip.Addr) bool {
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	src := netip.PrefixFrom(addr, bits).Masked()
	at := float64(now-t0) / float64(ms) // whole milliseconds: exact
	if b[src] == nil {
		b[src] = &struct{ level, at float64 }{5 * 50, at}
	}
	s := b[src]
	s.level, s.at = min(5*50, s.level+at-s.at), at
	if s.level < 50 {
		return false
	}
	s.level -= 50
	return true
}

func agree(t *testing.T, data []byte) {
	t.Helper()
	var l Limiter
	oracle, now := bottomless{}, t0
	for ; len(data) >= 3; data = data[3:] {
		now += int64(binary.BigEndian.Uint16(data)%1200) * ms
		src := addr4(uint32(data[2] % 8))
		if data[2]%2 == 1 {
			src = netip.AddrFrom16([16]byte{0x20, 1, 7: data[2] % 8, 15: data[2]})
		}
		if got, want := l.Allow(now, src), oracle.allow(now, src); got != want {
			t.Fatalf("after %d ms: Allow(%v) = %v, want %v", (now-t0)/ms, src, got, want)
		}
	}
}

func TestLimiterMatchesUnboundedOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 200 {
		data := make([]byte, 3*1000)
		for i := 0; i < len(data); i += 3 {
			pause := r.IntN(20)
			if r.IntN(50) == 0 {
				pause = r.IntN(1200)
			}
			binary.BigEndian.PutUint16(data[i:], uint16(pause))
			data[i+2] = byte(r.Uint32())
		}
		agree(t, data)
	}
}

func FuzzLimiter(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 3, 232, 1})
	f.Fuzz(agree)
}

func TestLimiterIsSafeForAllWorkers(t *testing.T) {
	var l Limiter
	var allowed atomic.Int64
	var wg sync.WaitGroup
	for worker := range int64(4) {
		wg.Go(func() {
			for i := range int64(1000) {
				if l.Allow(t0+i*ms-worker*ms, addr4(1)) {
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := allowed.Load(); n < 5 || n > 25 {
		t.Errorf("got %d messages allowed in a second, want 5 to 25", n)
	}
}

func TestLimiterAllocatesNothingForAKnownSource(t *testing.T) {
	var l Limiter
	src := netip.MustParseAddr("2001:db8::1")
	l.Allow(t0, src)
	if n := testing.AllocsPerRun(100, func() { l.Allow(t0, src) }); n != 0 {
		t.Errorf("got %v allocations per message, want 0", n)
	}
}
