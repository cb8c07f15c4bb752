// SPDX-License-Identifier: Apache-2.0

package fqcodel

import (
	"math"
	"time"
)

// Params are the parameters of CoDel (RFC 8289).
type Params struct {
	// Target is the sojourn time that a standing queue may have: a twentieth to a tenth of Interval.
	Target time.Duration
	// Interval is the time for which Target must be exceeded before the first signal. It should be a round-trip time that few flows
	// exceed.
	Interval time.Duration
	// MTU is MAXPACKET of RFC 8289 in bytes: no signal is due while a flow has at most this much behind the element that leaves. It is the
	// size of a packet, not of an element: Linux once compared with the largest element, and hardly signalled at low rates (commit
	// a5d280904050, "codel: fix maxpacket/mtu confusion").
	MTU int
}

// codel is the control state of one flow (RFC 8289, section 5.2). Times are nanoseconds of the caller's clock.
type codel struct {
	firstAbove int64  // the sojourn time will have exceeded Target for one interval then; 0 while it does not
	next       int64  // time of the next signal
	count      uint32 // signals in this signalling state
	lastCount  uint32 // count at the beginning of the last signalling state
	signalling bool   // dropping_ of the RFC
}

// above reports whether an element that leaves after sojourn may be signalled: whether the sojourn time has exceeded Target for one
// interval. remaining is the number of bytes behind the element in its flow.
func (c *codel) above(p *Params, now, sojourn int64, remaining int) bool {
	if sojourn < int64(p.Target) || remaining <= p.MTU {
		c.firstAbove = 0
		return false
	}
	if c.firstAbove == 0 {
		c.firstAbove = now + int64(p.Interval)
		return false
	}
	return now >= c.firstAbove
}

// enter begins the signalling state, at its first signal. If the last one was recent, it goes on at about the rate that controlled the
// queue then.
func (c *codel) enter(p *Params, now int64) {
	delta := c.count - c.lastCount
	c.signalling, c.count = true, 1
	if delta > 1 && now-c.next < 16*int64(p.Interval) {
		c.count = delta
	}
	c.lastCount = c.count
	c.next = p.control(now, c.count)
}

// counted counts a signal. The count saturates: zero would make the control law divide by zero.
func (c *codel) counted() {
	if c.count < math.MaxUint32 {
		c.count++
	}
}

// control is the control law: signal number count is followed by the next one after Interval/sqrt(count).
func (p *Params) control(t int64, count uint32) int64 {
	return t + int64(float64(p.Interval)/math.Sqrt(float64(count)))
}
