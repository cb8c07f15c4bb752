// SPDX-License-Identifier: Apache-2.0

package xsk

import "golang.org/x/sys/unix"

// bind binds the socket to its queue.
func (s *Socket) bind(c *Config) error {
	flags := uint16(unix.XDP_USE_NEED_WAKEUP) | modeFlag(c.Mode)
	if err := s.sys.bind(s.fd, &unix.SockaddrXDP{Flags: flags, Ifindex: uint32(c.Interface), QueueID: uint32(c.Queue)}); err != nil {
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
