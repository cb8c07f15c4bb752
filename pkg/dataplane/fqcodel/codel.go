// SPDX-License-Identifier: Apache-2.0

package fqcodel

import (
	"math"
	"time"
)

// codel is the state of one flow (RFC 8289, section 5.5). Times are in the caller's nanoseconds.
type codel struct {
	firstAbove int64 // when the sojourn time will have been above the target for one interval; 0 while it is below
	next       int64 // time of the next signal
	count      uint32
	lastCount  uint32 // count at the begin of the last dropping state
	signalling bool   // dropping_ of the RFC
}

// above reports whether an element that has waited for sojourn may be signalled (dodequeue of RFC 8289). remaining is the number of
// bytes behind it; with fewer than largest the queue is no standing one.
func (c *codel) above(p *Params, now, sojourn int64, remaining, largest int) bool {
	if sojourn < int64(p.Target) || remaining <= largest {
		c.firstAbove = 0
		return false
	}
	if c.firstAbove == 0 {
		c.firstAbove = now + int64(p.Interval)
		return false
	}
	return now >= c.firstAbove
}

// enter begins the dropping state after its first signal. If the last one was recent, it continues near the rate of then.
func (c *codel) enter(p *Params, now int64) {
	delta := c.count - c.lastCount
	c.signalling, c.count = true, 1
	if delta > 1 && now-c.next < 16*int64(p.Interval) {
		c.count = delta
	}
	c.next = p.control(now, c.count)
	c.lastCount = c.count
}

// control is the control law: the time of the next signal decreases with the square root of their number.
func (p *Params) control(t int64, count uint32) int64 {
	return t + int64(float64(p.Interval)/math.Sqrt(float64(count)))
}

// Params are CoDel's parameters.
type Params struct {
	// Target is the sojourn time that a standing queue may have.
	Target time.Duration
	// Interval is the time for which it must be exceeded before the first signal: a round trip that most flows do not exceed.
	Interval time.Duration
}
