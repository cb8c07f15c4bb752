// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// sender converts runs into messages, and sends the messages of each source in order. It has one user at a time.
type sender struct {
	port *Port
	fd   int
	// control is set for messages in the control group, which is outside the limits of send buffers.
	control bool
	dscp    uint8     // of all messages, as in a TOS byte
	outFD   int       // the socket of out: fd, another source's, or a send group's
	out     sendBatch // messages of one socket at a time
	// stalled are sockets that have refused a message, until room reports that they have room again.
	stalled []int
	full    []refusal  // of this call, because of full send buffers
	paths   *pathTable // limits of the paths at this call, nil for none
	// pathsChecked is set if none of them has ended.
	pathsChecked bool
	// resend holds the datagrams of a run whose UDP GSO send failed, while out is still in use.
	resend   sendBatch
	sendmmsg func(fd int, msgs []message) (int, unix.Errno) // sendmmsg; tests replace it
}

// refusal names a socket that takes no more messages of this call. full is the socket whose send
// buffer is full: out itself, or its source's socket.
type refusal struct{ out, full int }

func newSender(p *Port, fd, messages int) *sender {
	return &sender{
		port: p, fd: fd, outFD: fd, out: newSendBatch(messages), resend: newSendBatch(underlay.MaxRunSegments), sendmmsg: sendmmsg,
	}
}

func (s *sender) send(runs []underlay.Run) (failed int) {
	s.full = s.full[:0]
	s.paths, s.pathsChecked = s.port.paths.table.Load(), false
	for i := range runs {
		r := &runs[i]
		r.Sent = 0
		o := origin{run: i, tos: s.dscp | uint8(r.ECN)}
		if r.Err = r.Check(); r.Err == nil && s.port.IsLoop(r.To) {
			r.Err = underlay.ErrLoop
		}
		if r.Err == nil {
			o.from, r.Err = s.selectSource(runs, r)
		}
		if r.Err == nil {
			s.queue(runs, o)
		}
	}
	s.flush(&s.out, runs)
	for i := range runs {
		if runs[i].Err != nil {
			failed++
		}
	}
	return failed
}

// selectSource flushes if the run's socket differs from the current one. It returns the source address of the run.
func (s *sender) selectSource(runs []underlay.Run, r *underlay.Run) (from netip.Addr, err error) {
	if r.Source >= s.port.sources.Len() {
		return from, underlay.ErrBadRun
	}
	fd, from := s.socketOf(r)
	if fd < 0 {
		return from, errNoProbeSocket
	}
	if fd != s.outFD {
		s.flush(&s.out, runs)
		s.outFD = fd
	}
	if s.refuses(fd) {
		return from, underlay.ErrSendBufferFull
	}
	return from, nil
}

// socketOf returns the socket from which a run leaves, and the source address that goes with its messages.
func (s *sender) socketOf(r *underlay.Run) (fd int, from netip.Addr) {
	group := r.Group
	switch {
	case r.DontFragment:
		return s.port.groupSocket(r, probeGroup)
	case r.MayFragment:
		if fd, from = s.port.groupSocket(r, fragmentGroup); fd >= 0 {
			return fd, from
		}
		s.port.openFragmentSocket(r.Source)
	case s.control:
		group = controlGroup
	}
	if fd, from = s.port.groupSocket(r, group); fd >= 0 {
		return fd, from
	}
	fd, from = s.sourceSocket(r.Source), netip.Addr{}
	if src := r.To.Src; src.Is4() == r.To.Dst.Addr().Is4() { // ignore one of the other family
		from = src
	}
	return fd, from
}

// sourceSocket returns the socket of an open source.
func (s *sender) sourceSocket(source int) int {
	if source == 0 {
		return s.fd
	}
	return s.port.sources.Handle(source)
}

// queue adds the run of o as one message if UDP_SEGMENT works, else as one message per datagram.
func (s *sender) queue(runs []underlay.Run, o origin) {
	r := &runs[o.run]
	if s.limited(r) || r.Segments > 1 && !s.port.gso {
		s.queueSingly(&s.out, runs, o)
		return
	}
	if !s.out.fits(len(r.Parts)) {
		s.flush(&s.out, runs)
	}
	if r.Segments > 1 {
		o.segment = r.SegSize
	}
	if !s.out.start(s.port.family, r.To, o) {
		r.Err = errFamily
		return
	}
	for _, part := range r.Parts {
		s.out.add(part)
	}
}

// queueSingly adds the datagrams of the run of o to b, except datagrams that are too large for
// their path.
func (s *sender) queueSingly(b *sendBatch, runs []underlay.Run, o origin) {
	r := &runs[o.run]
	l := s.paths.limitOf(r)
	for datagram := range r.Datagrams {
		if len(datagram) >= l.datagram.bytes {
			r.Err = underlay.ErrTooBig
			continue
		}
		if !b.fits(1) {
			s.flush(b, runs)
		}
		b.singly = true
		if !b.start(s.port.family, r.To, o) {
			r.Err = errFamily
			return
		}
		b.add(datagram)
	}
}

// flush sends all of b. A message that the kernel refuses marks its run as failed and does not stop the others, unless the send
// buffer is full.
func (s *sender) flush(b *sendBatch, runs []underlay.Run) {
	for i := 0; i < b.count; {
		if s.refuses(s.outFD) {
			b.refuse(i, runs)
			break
		}
		n, errno := s.transmit(s.outFD, b.msgs[i:b.count])
		switch {
		case errno == 0 && n > 0:
			b.noteSent(i, n, runs)
			i += n
		case errno == unix.EAGAIN: // refuses holds from now on
		default:
			r := &runs[b.origins[i].run]
			if err := s.retry(b, i, runs, errno); err != nil && r.Err == nil {
				r.Err = err
			}
			i++
		}
	}
	b.reset()
}

// transmit sends messages from a socket, and notes whether its send buffer is full.
func (s *sender) transmit(fd int, msgs []message) (n int, errno unix.Errno) {
	half := len(s.stalled) > 0 && s.halfEmpty(fd)
	n, errno = s.sendmmsg(fd, msgs)
	for errno == unix.EINTR || errno == unix.ENOBUFS && s.enlarge(fd, &msgs[0].hdr) {
		n, errno = s.sendmmsg(fd, msgs)
	}
	switch {
	case errno == unix.EAGAIN:
		s.refused(fd)
	case errno == 0 && len(s.stalled) > 0:
		s.accepted(fd, half)
	}
	return n, errno
}

// refuses reports whether a socket takes no more messages of this call.
func (s *sender) refuses(fd int) bool { return s.fullSocket(fd) >= 0 }

// fullSocket returns the socket whose send buffer has refused a message that was to leave from the given one, -1 for none.
func (s *sender) fullSocket(fd int) int {
	for _, r := range s.full {
		if r.out == fd {
			return r.full
		}
	}
	return -1
}

// refuse marks the runs of message i and all behind it as refused.
func (b *sendBatch) refuse(i int, runs []underlay.Run) {
	for ; i < b.count; i++ {
		if r := &runs[b.origins[i].run]; r.Err == nil {
			r.Err = underlay.ErrSendBufferFull
		}
	}
}

// noteSent counts the n messages from i on, which were sent, in the runs that are sent singly.
func (b *sendBatch) noteSent(i, n int, runs []underlay.Run) {
	if !b.singly {
		return
	}
	for _, o := range b.origins[i : i+n] {
		if o.segment == 0 {
			runs[o.run].Sent++
		}
	}
}

// retry sends the refused message i of b in the remaining ways, and returns the error that remains.
func (s *sender) retry(b *sendBatch, i int, runs []underlay.Run, errno unix.Errno) error {
	if s.port.closed.Load() {
		return net.ErrClosed
	}
	r := &runs[b.origins[i].run]
	if isSourceError(errno) && b.dropSource(i) && !r.DontFragment { // the socket of its source may permit fragments
		fd := s.sourceSocket(r.Source) // the group's is bound to an address
		if _, errno = s.transmit(fd, b.msgs[i:i+1]); errno == 0 {
			b.noteSent(i, 1, runs)
			return nil
		}
	}
	if isSegmentationError(errno) && b.origins[i].segment > 0 {
		s.sendSingly(runs, b.origins[i], errno)
		return nil
	}
	if n := datagramLen(&b.msgs[i].hdr); errno == unix.EMSGSIZE && n > 0 && !hasOwnFragmentOption(r) {
		s.paths = s.port.paths.add(r, unlimited, n)
	}
	return errnoError(errno)
}

// errFamily is the error for an IPv6 endpoint on a host without IPv6.
var errFamily = fmt.Errorf("no IPv6 on this host: %w", unix.EAFNOSUPPORT)

// isSegmentationError reports whether single datagrams may succeed where a run failed. The device cannot checksum
// (EIO), or a datagram needs fragmentation, which excludes GSO (EINVAL, EMSGSIZE in later kernels).
func isSegmentationError(errno unix.Errno) bool {
	return errno == unix.EIO || errno == unix.EINVAL || errno == unix.EMSGSIZE
}

// isSourceError reports whether the local address may be the reason for an error: it is gone, or has no route.
func isSourceError(errno unix.Errno) bool {
	switch errno {
	case unix.EINVAL, unix.EADDRNOTAVAIL, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENODEV:
		return true
	}
	return false
}

// errnoError converts an Errno into an error without allocating. Only errors with a meaning of their own change.
func errnoError(errno unix.Errno) error {
	switch errno {
	case 0:
		return nil
	case unix.EMSGSIZE:
		return underlay.ErrTooBig
	case unix.EAGAIN:
		return underlay.ErrSendBufferFull
	}
	return errno
}
