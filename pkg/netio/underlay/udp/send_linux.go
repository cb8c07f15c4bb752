// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// sender converts runs into messages, and sends the messages of each source in order. It has one user at a time.
type sender struct {
	port  *Port
	fd    int
	outFD int       // the socket of out: fd, or another source's
	out   sendBatch // messages of one source at a time
	// resend holds the datagrams of a run whose UDP GSO send failed, while out is still in use.
	resend   sendBatch
	sendmmsg func(fd int, msgs []message) (int, unix.Errno) // sendmmsg; tests replace it
}

func newSender(p *Port, fd, messages int) *sender {
	return &sender{
		port: p, fd: fd, outFD: fd, out: newSendBatch(messages), resend: newSendBatch(underlay.MaxRunSegments), sendmmsg: sendmmsg,
	}
}

func (s *sender) send(runs []underlay.Run) (failed int) {
	for i := range runs {
		r := &runs[i]
		if r.Err = r.Check(); r.Err == nil {
			r.Err = s.selectSource(runs, r.Source)
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

// selectSource flushes if the source's socket differs from the current one.
func (s *sender) selectSource(runs []underlay.Run, source int) error {
	fd := s.fd
	if source > 0 {
		if source >= s.port.sources.Len() {
			return underlay.ErrBadRun
		}
		fd = s.port.sources.Handle(source)
	}
	if fd != s.outFD {
		s.flush(&s.out, runs)
		s.outFD = fd
	}
	return nil
}

// queue adds run i as one message if UDP_SEGMENT works, else as one message per datagram.
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

// flush sends all of b. A message that the kernel refuses marks its run as failed and does not stop the others.
func (s *sender) flush(b *sendBatch, runs []underlay.Run) {
	for i := 0; i < b.count; {
		n, errno := s.sendmmsg(s.outFD, b.msgs[i:b.count])
		switch {
		case errno == 0 && n > 0:
			i += n
		case errno == unix.EINTR:
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

// retry sends the refused message i of b in the remaining ways, and returns the error that remains.
func (s *sender) retry(b *sendBatch, i int, runs []underlay.Run, errno unix.Errno) error {
	if s.port.closed.Load() {
		return net.ErrClosed
	}
	if isSourceError(errno) && b.dropSource(i) {
		if errno = s.sendOne(b, i); errno == 0 {
			return nil
		}
	}
	if isSegmentationError(errno) && b.origins[i].segment > 0 {
		if errno == unix.EIO {
			s.port.gso.Store(false)
		}
		s.queueSingly(&s.resend, runs, b.origins[i].run)
		s.flush(&s.resend, runs)
		return nil // flush has recorded each error
	}
	return errnoError(errno)
}

// sendOne sends message i of b alone.
func (s *sender) sendOne(b *sendBatch, i int) unix.Errno {
	for {
		if _, errno := s.sendmmsg(s.outFD, b.msgs[i:i+1]); errno != unix.EINTR {
			return errno
		}
	}
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
