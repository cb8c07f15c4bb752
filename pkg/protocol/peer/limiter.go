// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"time"
)

// The limits of one source, as in the Linux driver (drivers/net/wireguard/ratelimiter.c).
const (
	handshakeCost  = int64(time.Second) / 20 // 20 handshake messages per second
	handshakeBurst = 5 * handshakeCost
	limiterIdle    = int64(time.Second)
)

// LimiterSources is the largest number of sources that a Limiter tracks at once.
const LimiterSources = 16384

// Limiter rate-limits handshake messages per source while the device is under load (paper, §5.3): 20 per second, 5 at
// once, for each IPv4 address or IPv6 /64. Use it only for messages with a valid mac2, whose source cannot be forged.
// Its memory is bounded: when LimiterSources are active, new ones are rejected. It is safe for concurrent use; the
// zero Limiter is ready.
type Limiter struct {
	mu      sync.Mutex
	buckets map[source]bucket
	swept   int64
}

// source is a rate-limited unit: an IPv4 address or an IPv6 /64.
type source struct {
	prefix uint64
	v4     bool
}

// bucket holds tokens in nanoseconds, as of the last message.
type bucket struct {
	tokens, last int64
}

// Allow reports whether a handshake message from addr may be processed at the instant now, and counts it. Instants of
// different goroutines need not be in order. An invalid address is rejected.
func (l *Limiter) Allow(now int64, addr netip.Addr) bool {
	src, ok := sourceOf(addr)
	if !ok {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweep(now)
	b, known := l.buckets[src]
	if !known {
		if len(l.buckets) >= LimiterSources {
			return false
		}
		b = bucket{tokens: handshakeBurst, last: now}
	}
	allowed := b.take(now)
	l.buckets[src] = b
	return allowed
}

// Len is the number of tracked sources.
func (l *Limiter) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.buckets)
}

// sweep removes idle sources, once per second. Their buckets are full again, so no state is lost.
func (l *Limiter) sweep(now int64) {
	if l.buckets == nil {
		l.buckets = map[source]bucket{}
	}
	if now-l.swept < limiterIdle {
		return
	}
	l.swept = now
	for src, b := range l.buckets {
		if now-b.last >= limiterIdle {
			delete(l.buckets, src)
		}
	}
}

func (b *bucket) take(now int64) bool {
	if now > b.last {
		b.tokens = min(handshakeBurst, b.tokens+now-b.last)
		b.last = now
	}
	if b.tokens < handshakeCost {
		return false
	}
	b.tokens -= handshakeCost
	return true
}

func sourceOf(addr netip.Addr) (source, bool) {
	addr = addr.Unmap()
	switch {
	case addr.Is4():
		b := addr.As4()
		return source{prefix: uint64(binary.BigEndian.Uint32(b[:])), v4: true}, true
	case addr.Is6():
		b := addr.As16()
		return source{prefix: binary.BigEndian.Uint64(b[:8])}, true
	default:
		return source{}, false
	}
}
