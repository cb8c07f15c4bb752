// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// openSockets opens and binds one socket per lane, all on one port, or none.
//
// The first is bound without SO_REUSEPORT. So if any other program holds the port, be it another ropewalk or the
// kernel's WireGuard, bind fails with EADDRINUSE instead of sharing the port silently. The option is set afterwards,
// and lets the other lanes join. Only a process of the same user that sets SO_REUSEPORT before its bind could still
// join, and no WireGuard does that.
//
// Until SetSelection, the kernel chooses the lane of a datagram by a hash of addresses and ports. The group numbers
// sockets in the order of their bind calls, so lane i is socket i.
func openSockets(c *Config) (socks []*socket, port uint16, err error) {
	defer func() {
		if err != nil {
			for _, s := range socks {
				_ = unix.Close(s.fd)
			}
			socks = nil
		}
	}()
	first, err := openFirst(c)
	if err != nil {
		return nil, 0, err
	}
	socks = append(socks, first)
	if port, err = first.localPort(); err != nil {
		return socks, 0, err
	}
	for len(socks) < c.Lanes {
		s, err := joinFirst(c, first, port)
		if err != nil {
			return socks, 0, err
		}
		socks = append(socks, s)
	}
	return socks, port, nil
}

// openFirst binds the first lane's socket. On hosts with IPv6 disabled it is an IPv4 socket.
func openFirst(c *Config) (*socket, error) {
	s, err := openBound(c, c.Port, (*socket).bind)
	if errors.Is(err, unix.EADDRNOTAVAIL) && !c.NoIPv6 {
		c.NoIPv6 = true
		s, err = openBound(c, c.Port, (*socket).bind)
	}
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("%w (another WireGuard may hold the port: `ss -ulpn` lists its process, except for in-kernel WireGuard)", err)
	}
	return s, err
}

// joinFirst binds another lane's socket to the port that first holds.
func joinFirst(c *Config, first *socket, port uint16) (*socket, error) {
	if err := first.reusePort(); err != nil {
		return nil, err
	}
	return openBound(c, port, func(s *socket, port uint16) error {
		if err := s.reusePort(); err != nil {
			return err
		}
		return s.bind(port)
	})
}

func openBound(c *Config, port uint16, bind func(*socket, uint16) error) (*socket, error) {
	s, err := openSocket(c)
	if err != nil {
		return nil, err
	}
	if err := bind(s, port); err != nil {
		_ = unix.Close(s.fd)
		return nil, fmt.Errorf("binding UDP port %d: %w", port, err)
	}
	return s, nil
}
