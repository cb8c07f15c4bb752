// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sendDelay is how long a full send buffer should take to empty. The data of all peers behind a network device waits that long.
	sendDelay = 20 * time.Millisecond
	// firstSendBuffer is the limit of a new socket in bytes. Each time it is full for less than sendDelay it doubles.
	firstSendBuffer = 64 << 10
	// minSendBuffer is the smallest limit of a send buffer in bytes. A train, or a datagram in one piece, enters a buffer that is not full even
	// if it does not fit.
	minSendBuffer = 8 << 10
	// fragmentCharge is the limit that a datagram in fragments needs, in multiples of its size.
	// Fragments behind the first are refused (ENOBUFS) when the socket has twice its limit in use
	// (__ip_append_data in net/ipv4/ip_output.c). The first one is refused when the socket has the
	// limit in use. The kernel doubles the limit, so this is enough for fragments whose memory
	// (truesize) is four times their payload. With an MTU of 576 or more it is 2.7 times that at
	// most.
	fragmentCharge = 2
)

// sendLimits adapts the sizes of send buffers to the rates at which network devices empty them. A buffer that absorbs the bursts of a fast
// device delays everything through a slow one. Most sockets never have an entry.
type sendLimits struct {
	mu      sync.Mutex
	largest int // the configured size
	sockets map[int]*sendLimit
	now     func() time.Time
	set     func(fd, bytes int)
}

// sendLimit is the state of one socket.
type sendLimit struct {
	bytes   int
	least   int       // for the largest datagram that was refused with ENOBUFS
	until   time.Time // when least ends: such datagrams may have stopped
	refused time.Time // when the buffer was found full; zero once it has room
}

func newSendLimits(largest int) sendLimits {
	return sendLimits{largest: largest, sockets: map[int]*sendLimit{}, now: time.Now, set: setSendBuffer}
}

// firstLimit returns the size of a new send buffer.
func firstLimit(largest int) int { return min(largest, firstSendBuffer) }

// full notes that a socket has refused a message.
func (l *sendLimits) full(fd int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.of(fd); s.refused.IsZero() {
		s.refused = l.now()
	}
}

// of returns the state of a socket. The caller holds mu.
func (l *sendLimits) of(fd int) *sendLimit {
	s := l.sockets[fd]
	if s == nil {
		s = &sendLimit{bytes: firstLimit(l.largest)}
		l.sockets[fd] = s
	}
	return s
}

// fit makes room for the fragments of a datagram of n bytes, which a socket has refused with ENOBUFS. It returns false if there was room: the
// kernel had no memory.
func (l *sendLimits) fit(fd, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.of(fd)
	s.least, s.until = max(s.least, fragmentCharge*n), l.now().Add(pathLifetime)
	if s.bytes >= s.least {
		return false
	}
	s.bytes = s.least
	l.set(fd, s.bytes)
	return true
}

// room notes that a socket accepts messages again, and reports whether that says something about
// the rate of the device. Either half of the buffer was sent meanwhile, or it was never found half
// empty for sendDelay.
func (l *sendLimits) room(fd int, half bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sockets[fd]
	if s == nil || s.refused.IsZero() {
		return true
	}
	now := l.now()
	took := max(now.Sub(s.refused), time.Microsecond)
	if !half && took < sendDelay {
		return false
	}
	s.refused = time.Time{}
	if !now.Before(s.until) {
		s.least = 0
	}
	wanted := int(float64(s.bytes) / 2 * float64(sendDelay) / float64(took))
	wanted = max(min(max(wanted, s.bytes/2, minSendBuffer), s.bytes*2, l.largest), s.least)
	if wanted != s.bytes {
		s.bytes = wanted
		l.set(fd, wanted)
	}
	return true
}

// setSendBuffer sets the size of a send buffer, as far as the kernel allows.
func setSendBuffer(fd, bytes int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, bytes) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, bytes)
	}
}

// refused notes that the send buffer of a socket is full: the present one, or its source's. Control messages do not change its size: they
// say little about the rate of the device, and other goroutines send them.
func (s *sender) refused(fd int) {
	s.full = append(s.full, refusal{out: s.outFD, full: fd})
	if !s.control && !slices.Contains(s.stalled, fd) {
		s.stalled = append(s.stalled, fd)
		s.port.limits.full(fd)
	}
}

// halfEmpty reports whether a socket that refused a message has half of its send buffer free. Only then the kernel calls it writable, but it
// accepts messages as soon as there is any room.
func (s *sender) halfEmpty(fd int) bool {
	if !slices.Contains(s.stalled, fd) {
		return false
	}
	fds := [...]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	n, err := unix.Poll(fds[:], 0)
	return n > 0 && err == nil
}

// accepted notes that a socket took a message, and whether half of its send buffer was free before.
func (s *sender) accepted(fd int, half bool) {
	if i := slices.Index(s.stalled, fd); i >= 0 && s.port.limits.room(fd, half) {
		s.stalled = slices.Delete(s.stalled, i, i+1)
	}
}

// enlarge makes room for the fragments of a datagram in a socket's send buffer. It returns false if there was room.
func (s *sender) enlarge(fd int, h *unix.Msghdr) bool {
	return !s.control && s.port.limits.fit(fd, datagramLen(h))
}
