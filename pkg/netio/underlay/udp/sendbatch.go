// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// maxSendBatch is the largest number of messages that go out in one system call.
const maxSendBatch = 128

// sendBatch is the argument of sendmmsg: the messages and their origins.
type sendBatch struct {
	msgs     []message
	origins  []origin
	names    []sockaddr
	controls [][txControlSize]byte
	iovs     []unix.Iovec
	count    int  // messages in use
	singly   bool // some messages are single datagrams of a run: Run.Sent counts them
	iovCount int  // iovs in use
}

// origin identifies the run of a message, and describes its control data.
type origin struct {
	run     int
	pktinfo int        // length of the pktinfo at the start of the control data, 0 without one
	segment int        // UDP_SEGMENT, 0 for a single datagram
	tos     uint8      // DSCP and ECN
	from    netip.Addr // the source address, invalid to leave it to routing
}

// newSendBatch allocates room for n messages, and for the parts of at least one run.
func newSendBatch(n int) sendBatch {
	return sendBatch{
		msgs: make([]message, n), origins: make([]origin, n), names: make([]sockaddr, n),
		controls: make([][txControlSize]byte, n), iovs: make([]unix.Iovec, n+underlay.MaxRunSegments),
	}
}

func (b *sendBatch) reset() { b.count, b.iovCount, b.singly = 0, 0, false }

// fits reports whether a message with that many parts can be added.
func (b *sendBatch) fits(parts int) bool {
	return b.count < len(b.msgs) && b.iovCount+parts <= len(b.iovs)
}

// start adds a message without payload. It returns false if the socket's family cannot reach the endpoint.
func (b *sendBatch) start(family int, to *underlay.Endpoint, o origin) bool {
	i := b.count
	h := &b.msgs[i].hdr
	*h = unix.Msghdr{Name: &b.names[i][0], Namelen: putSockaddr(&b.names[i], family, to)}
	if h.Namelen == 0 {
		return false
	}
	o.pktinfo = putSource(b.controls[i][:], o.from, to.Scope)
	n := o.pktinfo
	if o.segment > 0 {
		n += putSegmentSize(b.controls[i][n:], o.segment)
	}
	if o.tos != 0 {
		n += putTOS(b.controls[i][n:], to.Dst.Addr().Is4(), o.tos)
	}
	b.setControl(i, 0, n)
	b.origins[i] = o
	b.count++
	return true
}

// add appends a part to the message started last.
func (b *sendBatch) add(part []byte) {
	if len(part) == 0 {
		return
	}
	iov := &b.iovs[b.iovCount]
	iov.Base = &part[0]
	iov.SetLen(len(part))
	b.iovCount++
	h := &b.msgs[b.count-1].hdr
	if h.Iov == nil {
		h.Iov = iov
	}
	h.SetIovlen(int(h.Iovlen) + 1)
}

// datagramLen returns the size of a datagram, which has one part (underlay.Run.Check), or the size
// of a train's first part.
func datagramLen(h *unix.Msghdr) int {
	if h.Iov == nil {
		return 0
	}
	return int(h.Iov.Len)
}

func (b *sendBatch) setControl(i, from, to int) {
	h := &b.msgs[i].hdr
	h.Control = nil
	if to > from {
		h.Control = &b.controls[i][from]
	}
	h.SetControllen(to - from)
}

// dropSource leaves the local address of message i to routing. It returns false if that is the case already.
func (b *sendBatch) dropSource(i int) bool {
	o := &b.origins[i]
	if o.pktinfo == 0 {
		return false
	}
	b.setControl(i, o.pktinfo, int(b.msgs[i].hdr.Controllen))
	o.pktinfo = 0
	return true
}
