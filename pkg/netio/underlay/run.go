// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"errors"
	"fmt"
)

// ErrTooBig is the error for a datagram or run that is larger than UDP or the path can carry. It replaces EMSGSIZE.
var ErrTooBig = errors.New("datagram too big")

// ErrSendBufferFull is the error of sending while the network device has yet to send what is in the send buffer.
// Lanes with a transmit queue keep the run and retry. The slow path drops its message.
var ErrSendBufferFull = errors.New("the UDP socket's send buffer is full")

// ErrBadRun is the error for an inconsistent Run. The Run has no endpoint, an unknown source or
// group, more than MaxRunSegments, or parts that do not add up to Segments datagrams of SegSize.
var ErrBadRun = errors.New("malformed run")

// errTooManySources is the error of OpenSource when MaxSources are open.
var errTooManySources = fmt.Errorf("%d others are open already (they are closed when the interface goes down)", MaxSources)

// Check returns ErrBadRun or ErrTooBig for a run that no Lane may send, else nil. Lanes call it for each run. They
// check themselves whether the source is open.
func (r *Run) Check() error {
	if r.To == nil || !r.To.Dst.IsValid() || r.Segments < 1 || r.Segments > MaxRunSegments ||
		len(r.Parts) > MaxRunSegments || r.Source < 0 || r.Group < 0 || r.Group >= MaxGroups {
		return ErrBadRun
	}
	size, whole := r.measure()
	switch {
	case size > MaxDatagramRun:
		return ErrTooBig
	case !whole:
		return ErrBadRun
	case r.Segments > 1 && (size <= (r.Segments-1)*r.SegSize || size > r.Segments*r.SegSize):
		return ErrBadRun
	}
	return nil
}

// measure returns the payload bytes of r, and whether every part but the last ends at the end of a datagram.
func (r *Run) measure() (size int, whole bool) {
	whole = r.Segments == 1 || r.SegSize > 0
	ended := true
	for _, part := range r.Parts {
		if len(part) == 0 {
			continue
		}
		whole = whole && ended
		size += len(part)
		ended = r.Segments > 1 && r.SegSize > 0 && len(part)%r.SegSize == 0
	}
	return size, whole
}

// LargestDatagram returns the size of the largest datagram of a run that passed Check.
func (r *Run) LargestDatagram() (n int) {
	if r.Segments > 1 {
		return r.SegSize
	}
	for _, part := range r.Parts {
		n += len(part)
	}
	return n
}

// Datagrams calls yield for each datagram of a run that passed Check, in order.
func (r *Run) Datagrams(yield func(datagram []byte) bool) {
	sent := 0
	for _, part := range r.Parts {
		for len(part) > 0 {
			n := len(part)
			if r.Segments > 1 {
				n = min(n, r.SegSize)
			}
			if !yield(part[:n:n]) {
				return
			}
			part = part[n:]
			sent++
		}
	}
	if sent == 0 {
		yield(nil)
	}
}
