// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// The rests between attempts at a queue that is in use.
const (
	shortRest = time.Millisecond
	longRest  = 50 * time.Millisecond
)

// bind ties the socket to its queue. A bind that failed can be tried again on the same socket.
func (s *Socket) bind(c *Config) error {
	flags := uint16(unix.XDP_USE_NEED_WAKEUP) | modeFlag(c.Mode)
	if c.MultiBuffer {
		err := s.bindPatiently(c, flags|unix.XDP_USE_SG)
		if err == nil {
			s.features.MultiBuffer = true
			return nil
		}
		if !errors.Is(err, unix.EINVAL) { // what a kernel before 6.6 says to the flag
			return explainBind(c, err)
		}
	}
	if err := s.bindPatiently(c, flags); err != nil {
		return explainBind(c, err)
	}
	return nil
}

func modeFlag(m Mode) uint16 {
	switch m {
	case ZeroCopy:
		return unix.XDP_ZEROCOPY
	case Copy, Generic:
		return unix.XDP_COPY
	}
	return 0
}

// bindPatiently tries again while the queue is in use: the kernel gives up a queue in a work item, after its last
// socket was closed and the last packet of that has left.
func (s *Socket) bindPatiently(c *Config, flags uint16) error {
	address := &unix.SockaddrXDP{Flags: flags, Ifindex: uint32(c.Interface), QueueID: uint32(c.Queue)}
	rest, waited := shortRest, time.Duration(0)
	for {
		err := s.sys.bind(s.fd, address)
		if !errors.Is(err, unix.EBUSY) || waited >= c.Patience {
			return err
		}
		s.sys.pause(rest)
		waited += rest
		rest = min(2*rest, longRest)
	}
}
