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
	// minSendBuffer is the smallest limit of a send buffer in bytes. A run enters a buffer that is not full even if it does not fit.
	minSendBuffer = 8 << 10
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
	refused time.Time // when the buffer was found full; zero while it is not
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
	s := l.sockets[fd]
	if s == nil {
		s = &sendLimit{bytes: firstLimit(l.largest)}
		l.sockets[fd] = s
	}
	if s.refused.IsZero() {
		s.refused = l.now()
	}
}

// room notes that a socket accepts messages again: at least half of its buffer was sent meanwhile.
func (l *sendLimits) room(fd int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sockets[fd]
	if s == nil || s.refused.IsZero() {
		return
	}
	took := max(l.now().Sub(s.refused), time.Microsecond)
	s.refused = time.Time{}
	wanted := int(float64(s.bytes) / 2 * float64(sendDelay) / float64(took))
	wanted = min(max(wanted, s.bytes/2, minSendBuffer), s.bytes*2, l.largest)
	if wanted != s.bytes {
		s.bytes = wanted
		l.set(fd, wanted)
	}
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

// accepted notes that a socket took a message.
func (s *sender) accepted(fd int) {
	if i := slices.Index(s.stalled, fd); i >= 0 {
		s.stalled = slices.Delete(s.stalled, i, i+1)
		s.port.limits.room(fd)
	}
}
