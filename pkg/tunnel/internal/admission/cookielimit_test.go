// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"
)

func newGroupLimit() *groupLimit {
	var l cookieLimit
	l.init()
	return &l.first
}

// prefixed returns an address of prefix n.
func prefixed(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), 1}) }

// take counts a cookie if it is within the limit.
func take(l *groupLimit, now int64, addr netip.Addr) bool {
	c, ok := l.allow(now, addr)
	if ok {
		c.count(now)
	}
	return ok
}

// ask asks for cookies at a rate from a number of prefixes in turn, and returns how many are allowed.
func ask(l *groupLimit, from, duration time.Duration, perSecond, prefixes int) (allowed int) {
	step := time.Second / time.Duration(perSecond)
	for n := 0; time.Duration(n)*step < duration; n++ {
		if take(l, int64(from+time.Duration(n)*step), prefixed(n%prefixes)) {
			allowed++
		}
	}
	return allowed
}

// TestOnePrefixMayTakeHalfOfCookies: a carrier's NAT, or an IPv6 /48, may have thousands of peers that reconnect at once.
func TestOnePrefixMayTakeHalfOfCookies(t *testing.T) {
	const seconds, want = 4, CookieBurst/2 + 4*4096/2
	for _, c := range []struct {
		from                time.Duration
		perSecond, min, max int
	}{
		{time.Hour, 64, seconds * 64, seconds * 64}, // slower than the limit
		{time.Hour, 20_000, want * 96 / 100, want * 101 / 100},
		{200 * 24 * time.Hour, 20_000, want * 96 / 100, want * 101 / 100},
		{1<<53 - 2*time.Second, 20_000, want * 96 / 100, want * 101 / 100}, // the time of the counts wraps meanwhile
	} {
		if n := ask(newGroupLimit(), c.from, seconds*time.Second, c.perSecond, 1); n < c.min || n > c.max {
			t.Errorf("after %s, %d messages per second: %d get a cookie in four seconds, want %d to %d", c.from, c.perSecond, n, c.min, c.max)
		}
	}
}

// TestFloodsFromManyPrefixesLeaveCookies floods from 200 prefixes at random intervals of 20 µs on average. One message in 1,000 is of another
// sender. Some of these share a group with a prefix of the flood.
func TestFloodsFromManyPrefixesLeaveCookies(t *testing.T) {
	const prefixes, others, each = 200, 500, 1000
	l, now, allowed := newGroupLimit(), int64(time.Hour), 0
	r := rand.New(rand.NewPCG(1, 2))
	flood := func(n int) {
		for range n {
			now += r.Int64N(40_000)
			take(l, now, prefixed(r.IntN(prefixes)))
		}
	}
	flood(250_000)
	for n := range others {
		before := r.IntN(each)
		flood(before)
		if take(l, now, prefixed(1000+n)) {
			allowed++
		}
		flood(each - before)
	}
	if allowed < others*6/10 {
		t.Errorf("%d of %d senders elsewhere get a cookie, want most", allowed, others)
	}
}

func TestCookiesAreCountedConcurrently(t *testing.T) {
	const lanes, each = 8, 60
	var f fading
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			for range each {
				f.add(int64(time.Hour) - int64(lane)) // not in order
			}
		})
	}
	all.Wait()
	if n := f.at(int64(time.Hour)); n < (lanes*each-1)*fadingOne || n > lanes*each*fadingOne {
		t.Errorf("got %.1f events, want %d", float64(n)/fadingOne, lanes*each)
	}
}
