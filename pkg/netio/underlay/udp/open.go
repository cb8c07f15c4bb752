// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// laneSockets are the sockets of a listen port: the lanes' sockets, and the holder.
type laneSockets struct {
	lanes  []*socket
	holder int // -1 for none
	port   uint16
}

// openSockets opens and binds one socket per lane, all on one port, or none.
//
// The first socket is bound without SO_REUSEPORT. So if any other program holds the port, be it
// another ropewalk or the kernel's WireGuard, bind fails with EADDRINUSE. It never shares the port
// silently. The option is set afterwards, and lets the other lanes join.
//
// At the end the holder, or the only lane, has to lose the option (shareOwner).
//
// Until SetSelection, the kernel chooses the lane of a datagram by a hash of addresses and ports. The group numbers
// sockets in the order of their bind calls, so lane i is socket i.
func openSockets(c *Config) (*laneSockets, error) {
	first, err := openFirst(c)
	if err != nil {
		return nil, err
	}
	s := &laneSockets{lanes: []*socket{first}, holder: -1}
	s.port, err = first.localPort()
	ipv6 := first.family == unix.AF_INET6
	if err == nil && c.Lanes > 1 && ipv6 {
		if holderErr := first.receiveNothing(); holderErr == nil {
			s.lanes, s.holder = nil, first.fd
		} else {
			c.warnOfNoHolder(s.port, holderErr)
		}
	}
	for err == nil && len(s.lanes) < c.Lanes {
		err = s.join(c, first)
	}
	if err == nil && c.Lanes > 1 && !ipv6 {
		var holderErr error
		if s.holder, holderErr = openHolder(s.port); holderErr != nil {
			c.warnOfNoHolder(s.port, holderErr)
		}
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// openFirst binds the first socket. On hosts with IPv6 disabled it is an IPv4 socket.
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

// join binds the next lane's socket to the port that first holds.
func (s *laneSockets) join(c *Config, first *socket) error {
	if err := first.reusePort(1); err != nil {
		return err
	}
	next, err := openBound(c, s.port, (*socket).bindShared)
	if err == nil {
		s.lanes = append(s.lanes, next)
	}
	return err
}

// close closes all sockets.
func (s *laneSockets) close() {
	for _, l := range s.lanes {
		_ = unix.Close(l.fd)
	}
	if s.holder >= 0 {
		_ = unix.Close(s.holder)
	}
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
