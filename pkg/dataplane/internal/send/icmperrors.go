// SPDX-License-Identifier: Apache-2.0

package send

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// Each lane limits its ICMP errors (RFC 1812, section 4.3.2.8; RFC 4443, section 2.4, rule f) as
// Linux limits a host's errors: 1,000 a second after a burst of 50 (icmp_msgs_per_sec,
// icmp_msgs_burst). Errors of path MTU discovery have no limit, as in Linux (icmpv4_mask_allow in
// net/ipv4/icmp.c, icmpv6_mask_allow in net/ipv6/icmp.c). A sender that ignores them would take
// them from others, whose connections would hang. They are no larger than the packets that they
// answer.
const (
	icmpInterval = int64(time.Millisecond)
	icmpBurst    = 50
)

// hostUnreachable is the MTU that stands for another error: Host Unreachable.
const hostUnreachable = 0

// icmpErrors writes the ICMP errors of one transmitter to the TUN.
type icmpErrors struct {
	tokens int64
	filled int64     // time up to which tokens were added
	parts  [1][]byte // a virtio-net header of zeros and an error; nil until the first
}

// take takes a token. It reports whether there was one.
func (e *icmpErrors) take(now int64) bool {
	if n := (now - e.filled) / icmpInterval; n > 0 {
		e.tokens = min(e.tokens+n, icmpBurst)
		e.filled += n * icmpInterval
	}
	if e.tokens == 0 {
		return false
	}
	e.tokens--
	return true
}

// answer sends the sender of packet i of t's parsed train a Packet Too Big with that mtu, or hostUnreachable. It sends none
// where a router must not. A train gets one error.
func (e *icmpErrors) answer(t *Transmitter, i, mtu int) {
	ip := t.segment(i)
	if !packet.AllowsICMPError(ip) {
		return
	}
	if mtu == hostUnreachable && !e.take(t.out.now) {
		t.out.lane.Stats.ICMP.Limited.Add(1)
		return
	}
	if err := t.out.lane.Queue.Inject(e.write(ip, mtu)); err != nil {
		t.out.drop(drop.RXTUNWrite, 1)
		return
	}
	t.out.lane.Stats.ICMP.Sent.Add(1)
}

// write returns the error about ip as buffers for the TUN.
func (e *icmpErrors) write(ip []byte, mtu int) [][]byte {
	const header = offload.VnetHdrLen
	if e.parts[0] == nil {
		e.parts[0] = make([]byte, header+packet.MaxICMPError)
	}
	dst := e.parts[0][:header+packet.MaxICMPError]
	n := 0
	if mtu == hostUnreachable {
		n = packet.WriteHostUnreachable(dst[header:], ip)
	} else {
		n = packet.WritePacketTooBig(dst[header:], ip, mtu)
	}
	e.parts[0] = dst[:header+n]
	return e.parts[:]
}
