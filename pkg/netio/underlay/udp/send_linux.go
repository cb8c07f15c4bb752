// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// sender turns runs into messages and sends them in order, those of source 0 on one socket. It has one user at a time.
type sender struct {
	port *Port
	fd   int
	now  int       // the socket that out is for: fd, or another source's
	out  sendBatch // of one source at a time
	// again holds the datagrams of a run whose UDP GSO send was refused, while out is still in use.
	again sendBatch
	call  func(fd int, msgs []message) (int, unix.Errno) // sendmmsg, but in tests of its errors
}

func newSender(p *Port, fd, messages int) *sender {
	return &sender{
		port: p, fd: fd, now: fd, out: newSendBatch(messages), again: newSendBatch(underlay.MaxRunSegments), call: sendmmsg,
	}
}

func (s *sender) send(runs []underlay.Run) (failed int) {
	for i := range runs {
		r := &runs[i]
		if r.Err = r.Check(); r.Err == nil {
			r.Err = s.turn(runs, r.Source)
		}
		if r.Err == nil {
			s.queue(runs, i)
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

// turn makes what is queued next leave from that source.
func (s *sender) turn(runs []underlay.Run, source int) error {
	fd := s.fd
	if source > 0 {
		if source >= s.port.sources.Len() {
			return underlay.ErrBadRun
		}
		fd = s.port.sources.Handle(source)
	}
	if fd != s.now {
		s.flush(&s.out, runs)
		s.now = fd
	}
	return nil
}

// queue adds run i as one message where UDP_SEGMENT works, and as one message per datagram elsewhere.
func (s *sender) queue(runs []underlay.Run, i int) {
	r := &runs[i]
	if r.Segments > 1 && !s.port.gso.Load() {
		s.queueSingly(&s.out, runs, i)
		return
	}
	if !s.out.fits(len(r.Parts)) {
		s.flush(&s.out, runs)
	}
	o := origin{run: i, ecn: r.ECN}
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

func (s *sender) queueSingly(b *sendBatch, runs []underlay.Run, i int) {
	r := &runs[i]
	for datagram := range r.Datagrams {
		if !b.fits(1) {
			s.flush(b, runs)
		}
		if !b.start(s.port.family, r.To, origin{run: i, ecn: r.ECN}) {
			r.Err = errFamily
			return
		}
		b.add(datagram)
	}
}

// flush sends all of b. A message that the kernel refuses marks its run and does not stop the others.
func (s *sender) flush(b *sendBatch, runs []underlay.Run) {
	for i := 0; i < b.count; {
		n, errno := s.call(s.now, b.msgs[i:b.count])
		switch {
		case errno == 0 && n > 0:
			i += n
		case errno == unix.EINTR:
		default:
			r := &runs[b.made[i].run]
			if err := s.refused(b, i, runs, errno); err != nil && r.Err == nil {
				r.Err = err
			}
			i++
		}
	}
	b.reset()
}

// refused tries message i of b in every other way there is, and returns the error that remains.
func (s *sender) refused(b *sendBatch, i int, runs []underlay.Run, errno unix.Errno) error {
	if s.port.closed.Load() {
		return net.ErrClosed
	}
	if sourceRefused(errno) && b.dropSource(i) {
		if errno = s.one(b, i); errno == 0 {
			return nil
		}
	}
	if segmentsRefused(errno) && b.made[i].segment > 0 {
		if errno == unix.EIO {
			s.port.gso.Store(false)
		}
		s.queueSingly(&s.again, runs, b.made[i].run)
		s.flush(&s.again, runs)
		return nil // each datagram reported for itself
	}
	return explain(errno)
}

// one sends message i of b alone.
func (s *sender) one(b *sendBatch, i int) unix.Errno {
	for {
		if _, errno := s.call(s.now, b.msgs[i:i+1]); errno != unix.EINTR {
			return errno
		}
	}
}

// errFamily answers an IPv6 endpoint on a host without IPv6.
var errFamily = fmt.Errorf("no IPv6 on this host: %w", unix.EAFNOSUPPORT)

// segmentsRefused says whether single datagrams may pass where a run did not: the device cannot checksum (EIO), or a
// datagram needs fragmenting, which excludes GSO (EINVAL, EMSGSIZE in later kernels).
func segmentsRefused(errno unix.Errno) bool {
	return errno == unix.EIO || errno == unix.EINVAL || errno == unix.EMSGSIZE
}

// sourceRefused says whether the wanted local address may be what the kernel refused: it is gone, or leads nowhere.
func sourceRefused(errno unix.Errno) bool {
	switch errno {
	case unix.EINVAL, unix.EADDRNOTAVAIL, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENODEV:
		return true
	}
	return false
}

// explain returns errors without allocating: an Errno as it is, but for the ones with a meaning of their own.
func explain(errno unix.Errno) error {
	switch errno {
	case 0:
		return nil
	case unix.EMSGSIZE:
		return underlay.ErrTooBig
	}
	return errno
}
