// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// maxRecvBatch is the largest number of elements one Recv returns.
const maxRecvBatch = 128

// recvBatch is the prebuilt argument of recvmmsg. unpack restores the fields that the kernel has overwritten.
type recvBatch struct {
	msgs     [maxRecvBatch]message
	iovs     [maxRecvBatch]unix.Iovec
	names    [maxRecvBatch]sockaddr
	controls [maxRecvBatch][rxControlSize]byte
	// elements and messages count what was received. The kernel has coalesced the messages of an
	// element.
	elements, messages atomic.Uint64
}

func newRecvBatch() *recvBatch {
	b := new(recvBatch)
	for i := range b.msgs {
		h := &b.msgs[i].hdr
		h.Name = &b.names[i][0]
		h.Iov = &b.iovs[i]
		h.SetIovlen(1)
		h.Control = &b.controls[i][0]
		b.rearm(i)
	}
	return b
}

func (b *recvBatch) rearm(i int) {
	b.msgs[i].hdr.Namelen = uint32(len(b.names[i]))
	b.msgs[i].hdr.SetControllen(len(b.controls[i]))
}

// prepare points the messages at the buffers of rx, which are usually the buffers of the last
// call.
func (b *recvBatch) prepare(rx []underlay.Datagrams) []message {
	n := min(len(rx), len(b.msgs))
	for i := range n {
		buf, iov := rx[i].Buf, &b.iovs[i]
		if len(buf) == 0 {
			*iov = unix.Iovec{}
			continue
		}
		if iov.Base != &buf[0] || int(iov.Len) != len(buf) {
			iov.Base = &buf[0]
			iov.SetLen(len(buf))
		}
	}
	return b.msgs[:n]
}

// unpack fills all of rx from the received messages.
func (b *recvBatch) unpack(rx []underlay.Datagrams) {
	messages := len(rx)
	for i := range rx {
		d, m := &rx[i], &b.msgs[i]
		d.N = min(int(m.size), len(d.Buf))
		d.SegSize = d.N
		d.Truncated = m.hdr.Flags&unix.MSG_TRUNC != 0
		d.From, d.ECN = underlay.Endpoint{}, packet.NotECT
		d.From.Dst, d.From.Scope = parseSockaddr(b.names[i][:min(int(m.hdr.Namelen), len(b.names[i]))])
		parseControl(b.controls[i][:min(int(m.hdr.Controllen), len(b.controls[i]))], d)
		b.rearm(i)
		if d.SegSize > 0 && d.SegSize < d.N {
			messages += (d.N - 1) / d.SegSize
		}
	}
	b.elements.Add(uint64(len(rx)))
	b.messages.Add(uint64(messages))
}
