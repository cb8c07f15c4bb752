// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// The intervals between attempts to bind to a queue that is in use.
const (
	minRetryInterval = time.Millisecond
	maxRetryInterval = 50 * time.Millisecond
)

// bind binds the socket to its queue. A failed bind can be repeated on the same socket.
func (s *Socket) bind(c *Config) error {
	flags := uint16(unix.XDP_USE_NEED_WAKEUP) | modeFlag(c.Mode)
	if err := s.bindWithRetry(c, flags); err != nil {
		return explainBind(c, err)
	}
	return nil
}

func modeFlag(m Mode) uint16 {
	switch m {
	case ZeroCopy:
		return unix.XDP_ZEROCOPY
	case Copy:
		return unix.XDP_COPY
	}
	return 0
}

// bindWithRetry retries while the queue is in use: the kernel releases a queue in a work item, after its last socket
// was closed and that socket's last packet was sent.
func (s *Socket) bindWithRetry(c *Config, flags uint16) error {
	address := &unix.SockaddrXDP{Flags: flags, Ifindex: uint32(c.Interface), QueueID: uint32(c.Queue)}
	interval, waited := minRetryInterval, time.Duration(0)
	for {
		err := s.sys.bind(s.fd, address)
		if !errors.Is(err, unix.EBUSY) || waited >= c.BindTimeout {
			return err
		}
		s.sys.pause(interval)
		waited += interval
		interval = min(2*interval, maxRetryInterval)
	}
}
