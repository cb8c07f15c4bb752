// SPDX-License-Identifier: Apache-2.0

package device

import (
	"hash/maphash"
	"net/netip"
	"sync/atomic"
	"time"
)

// Limits of the cookies for senders that nothing is known of. A cookie costs more than all else that such a message costs, and a sender needs
// one in two minutes. WireGuard permits to drop messages under load (paper §5.3), and the sender repeats them.
const (
	// cookieGroups is the number of groups of source prefixes. Each has cookieGroupRate cookies per second, cookieGroupBurst at once. That is
	// more than the handshakes of one address that the limiter allows.
	cookieGroups     = 1024
	cookieGroupRate  = 64
	cookieGroupBurst = 256
	// cookieRate is the number of cookies per second for all groups together, cookieBurst at once. It bounds what a flood that forges all
	// prefixes costs.
	cookieRate  = 4096
	cookieBurst = 512
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

// allow reports whether a message from addr may be answered with a cookie, and counts it.
func (l *cookieLimit) allow(now int64, addr netip.Addr) bool {
	if l.senders.note(now, addr) {
		return l.again.allow(now, addr)
	}
	return l.first.allow(now, addr)
}

// groupLimit limits cookies by groups of source prefixes, and in total. The secret seed keeps a sender from choosing prefixes of a group.
type groupLimit struct {
	seed   maphash.Seed
	groups [cookieGroups]bucket
	total  bucket
}

// allow counts a cookie if it is within both limits. A group that is over its limit takes nothing from the others.
func (l *groupLimit) allow(now int64, addr netip.Addr) bool {
	group := &l.groups[maphash.Comparable(l.seed, sourcePrefix(addr))%cookieGroups]
	return group.allow(now, cookieGroupRate, cookieGroupBurst) && l.total.allow(now, cookieRate, cookieBurst)
}

// bucket limits a rate of events: the generic cell rate algorithm (ITU-T I.371). Its value is the instant at which all events so far would
// have happened at that rate. The zero bucket is ready.
type bucket struct{ at atomic.Int64 }

// allow reports whether an event at the instant now is within a rate per second and a burst, and counts it.
func (b *bucket) allow(now, rate, burst int64) bool {
	cost := int64(time.Second) / rate
	for {
		old := b.at.Load()
		next := max(old, now) + cost
		if next > now+burst*cost {
			return false
		}
		if b.at.CompareAndSwap(old, next) {
			return true
		}
	}
}
