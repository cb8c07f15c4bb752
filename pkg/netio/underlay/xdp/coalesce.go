// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

const (
	// coalesceAfter is the number of datagrams in a row from the UDP socket that may wait, after which the lane coalesces. A flood has
	// as many within milliseconds. A few handshakes never wait.
	coalesceAfter = 64
	// coalesceInterval is the time between two reads then, as of a NIC's interrupt coalescing. It is short beside a handshake.
	coalesceInterval = time.Millisecond
)

// coalescer lets a flood of handshake messages wait in the UDP socket for a moment. Otherwise each
// of them wakes the lane, interrupts the sender or receiver of data on that CPU, and costs a
// system call of its own. Together that is more than all work on the message. A datagram that may
// not wait ends it: the UDP socket may receive all data of a peer behind another device.
type coalescer struct {
	mayWait func(datagram []byte) bool // Config.MayWait, nil for none
	waiting int                        // datagrams since the last that may not wait, at most coalesceAfter
	next    time.Time                  // the UDP socket is not read before, unless zero
}

// note records a read of the UDP socket. more tells that the socket has more datagrams, so that it is read on: a larger flood shall not
// fill its buffer.
func (c *coalescer) note(rx []underlay.Datagrams, more bool) {
	if c.mayWait == nil {
		return
	}
	c.next = time.Time{}
	for i := range rx {
		if !c.mayWait(rx[i].Buf[:rx[i].SegSize]) {
			c.waiting = 0
			return
		}
	}
	if c.waiting = min(c.waiting+len(rx), coalesceAfter); c.waiting == coalesceAfter && len(rx) > 0 && !more {
		c.next = time.Now().Add(coalesceInterval)
	}
}

// wait returns the time until the next read, 0 if it is due.
func (c *coalescer) wait() time.Duration {
	if c.next.IsZero() {
		return 0
	}
	return max(time.Until(c.next), 0)
}
