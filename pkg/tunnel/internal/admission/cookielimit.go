// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"hash/maphash"
	"math"
	"net/netip"
	"sync/atomic"
	"time"
)

// Limits of the cookies for senders that nothing is known of. A cookie costs more than all else that such a message costs, and a sender needs
// one in two minutes. WireGuard permits to drop messages under load (paper §5.3), and the sender repeats them.
const (
	// cookieGroups is the number of groups of source prefixes that share CookieBurst.
	cookieGroups = 1024
	// CookieBurst is the number of cookies at once, for all groups together: thousands of peers that reconnect try again only after 5 s.
	CookieBurst = 8192
	// CookieFade is the time constant with which a cookie that was sent stops to count: CookieBurst per CookieFade are 4,096 per second. That
	// bounds what a flood that forges all prefixes costs.
	CookieFade = 2 * time.Second
)

// cookieLimit limits the cookies for unknown senders. Lanes use it without a lock. Senders that try again have limits of their own: a flood
// that invents addresses does not repeat them, so it takes no cookies from these.
type cookieLimit struct {
	senders      recentSenders
	first, again groupLimit
}

func (l *cookieLimit) init() {
	l.senders.seed, l.first.seed, l.again.seed = maphash.MakeSeed(), maphash.MakeSeed(), maphash.MakeSeed()
}

// allow reports whether a message from addr may be answered with a cookie. If the queue has room for the message, the caller counts it.
func (l *cookieLimit) allow(now int64, addr netip.Addr) (cookieCounts, bool) {
	if l.senders.note(now, addr) {
		return l.again.allow(now, addr)
	}
	return l.first.allow(now, addr)
}

// groupLimit limits cookies in total. As in the queue of handshake messages, a group of source
// prefixes may have as many as there are left (see put). This is half of all if no other group
// asks. So thousands of peers behind one prefix get cookies with few tries, and floods from few
// prefixes leave cookies for others. The secret seed keeps a sender from choosing prefixes of a
// group.
type groupLimit struct {
	seed   maphash.Seed
	groups [cookieGroups]fading
	total  fading
}

// cookieCounts are the counts that a cookie adds to. The zero cookieCounts are none.
type cookieCounts struct{ group, total *fading }

// allow reports whether another cookie is within the limit, and returns its counts. Lanes that ask at the same time may exceed the limit by one
// cookie each.
func (l *groupLimit) allow(now int64, addr netip.Addr) (cookieCounts, bool) {
	c := cookieCounts{&l.groups[maphash.Comparable(l.seed, sourcePrefix(addr))%cookieGroups], &l.total}
	return c, c.group.at(now)+c.total.at(now)+fadingOne <= CookieBurst*fadingOne
}

// count counts a cookie.
func (c cookieCounts) count(now int64) {
	if c.total != nil {
		c.group.add(now)
		c.total.add(now)
	}
}

// fading counts events that fade away exponentially, with the time constant CookieFade. So the groups' counts always add up to the total.
// It is a time in units of 8.2 µs, which wrap after 104 days, and below it the count at that time. The zero fading is empty.
type fading struct{ v atomic.Uint64 }

const (
	fadingUnit      = 13 // of time, as a power of two in ns
	fadingTimeBits  = 40
	fadingCountBits = 64 - fadingTimeBits
	fadingOne       = 1 << 10 // one event
	fadingMax       = 1<<fadingCountBits - 1
)

// at returns the count, in fadingOne, at the instant now.
func (f *fading) at(now int64) uint64 { return faded(f.v.Load(), now) }

// add adds an event.
func (f *fading) add(now int64) {
	for {
		old := f.v.Load()
		next := uint64(now)>>fadingUnit<<fadingCountBits | min(faded(old, now)+fadingOne, fadingMax)
		if f.v.CompareAndSwap(old, next) {
			return
		}
	}
}

// faded returns what is left of a count. Instants of different lanes need not be in order: nothing fades from a later one.
func faded(v uint64, now int64) uint64 {
	const wrap, disorder = 1<<fadingTimeBits - 1, uint64(time.Second) >> fadingUnit
	count, units := v&fadingMax, (uint64(now)>>fadingUnit-v>>fadingCountBits)&wrap
	if count == 0 || units > wrap-disorder {
		return count
	}
	return uint64(float64(count) * math.Exp(-float64(units<<fadingUnit)/float64(CookieFade)))
}
