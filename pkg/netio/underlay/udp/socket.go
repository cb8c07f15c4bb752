// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
)

// socket is one UDP socket and its capabilities.
type socket struct {
	fd        int
	family    int // AF_INET6 includes IPv4
	gso, gro  bool
	filterErr error // error of the initiation filter; nil if attached or not needed
	bound     bool  // inherited, so bound already
}

// openSocket returns an unbound socket with all options set but SO_REUSEPORT.
func openSocket(c *Config) (s *socket, err error) {
	s = &socket{family: unix.AF_INET6}
	if c.NoIPv6 {
		s.family = unix.AF_INET
	}
	s.fd, err = newSocket(s.family)
	if s.family == unix.AF_INET6 && errors.Is(err, unix.EAFNOSUPPORT) {
		s.family = unix.AF_INET
		s.fd, err = newSocket(s.family)
	}
	if err != nil {
		return nil, fmt.Errorf("opening a UDP socket: %w", err)
	}
	if err := s.configure(c); err != nil {
		return nil, errors.Join(err, unix.Close(s.fd))
	}
	return s, nil
}

func newSocket(family int) (int, error) {
	return unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
}

// option is one setsockopt that must succeed.
type option struct {
	name                 string
	level, option, value int
}

func (s *socket) set(o option) error {
	if err := unix.SetsockoptInt(s.fd, o.level, o.option, o.value); err != nil {
		return fmt.Errorf("setting %s: %w", o.name, err)
	}
	return nil
}

func (s *socket) configure(c *Config) error {
	for _, o := range s.options() {
		if s.bound && o.option == unix.IPV6_V6ONLY && o.level == unix.SOL_IPV6 {
			continue // cannot change after bind
		}
		if err := s.set(o); err != nil {
			return err
		}
	}
	if err := s.setFragments(c.Fragments); err != nil {
		return err
	}
	if c.Mark != 0 {
		if err := s.setMark(c.Mark); err != nil {
			return err
		}
	}
	s.setBuffers(c)
	s.probeOffloads(c)
	if s.gro {
		s.filterErr = s.attachInitiationFilter()
	}
	return nil
}

// options returns the socket options.
func (s *socket) options() []option {
	tos := option{"IP_RECVTOS", unix.SOL_IP, unix.IP_RECVTOS, 1}
	if s.family == unix.AF_INET {
		return []option{tos, {"IP_PKTINFO", unix.SOL_IP, unix.IP_PKTINFO, 1}}
	}
	return []option{
		{"IPV6_V6ONLY", unix.SOL_IPV6, unix.IPV6_V6ONLY, 0},
		// This gives IPv4 datagrams an IPV6_PKTINFO with a mapped address.
		{"IPV6_RECVPKTINFO", unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1},
		{"IPV6_RECVTCLASS", unix.SOL_IPV6, unix.IPV6_RECVTCLASS, 1},
		tos,
	}
}

func (s *socket) setMark(mark uint32) error {
	return s.set(option{"the firewall mark (needs CAP_NET_ADMIN)", unix.SOL_SOCKET, unix.SO_MARK, int(mark)})
}

// setBuffers sets the buffer sizes as far as the kernel allows. Beyond net.core.[rw]mem_max it needs CAP_NET_ADMIN.
func (s *socket) setBuffers(c *Config) {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, c.ReceiveBuffer) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, c.ReceiveBuffer)
	}
	setSendBuffer(s.fd, firstLimit(c.SendBuffer))
}

func (s *socket) probeOffloads(c *Config) {
	if !c.NoGSO {
		_, err := unix.GetsockoptInt(s.fd, unix.SOL_UDP, unix.UDP_SEGMENT)
		s.gso = err == nil
	}
	if release, _ := kernel.Uname(); !c.NoGRO && groUsable(release) {
		s.gro = unix.SetsockoptInt(s.fd, unix.SOL_UDP, unix.UDP_GRO, 1) == nil
	}
}

// bind binds to the wildcard address.
func (s *socket) bind(port uint16) error {
	if s.family == unix.AF_INET {
		return s.bindTo(netip.IPv4Unspecified(), port)
	}
	return s.bindTo(netip.IPv6Unspecified(), port)
}

func (s *socket) bindTo(addr netip.Addr, port uint16) error {
	if s.family == unix.AF_INET {
		return unix.Bind(s.fd, &unix.SockaddrInet4{Port: int(port), Addr: addr.As4()})
	}
	return unix.Bind(s.fd, &unix.SockaddrInet6{Port: int(port), Addr: addr.As16()})
}

// bindShared binds to the wildcard address of a port whose sockets have SO_REUSEPORT.
func (s *socket) bindShared(port uint16) error {
	if err := s.reusePort(1); err != nil {
		return err
	}
	return s.bind(port)
}

// reusePort sets SO_REUSEPORT to 0 or 1. With 1, other sockets with the option can bind the same
// port.
func (s *socket) reusePort(on int) error {
	return s.set(option{"SO_REUSEPORT", unix.SOL_SOCKET, unix.SO_REUSEPORT, on})
}

func (s *socket) localPort() (uint16, error) {
	name, err := unix.Getsockname(s.fd)
	if err != nil {
		return 0, fmt.Errorf("reading the bound port: %w", err)
	}
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		return uint16(a.Port), nil
	case *unix.SockaddrInet6:
		return uint16(a.Port), nil
	}
	return 0, fmt.Errorf("reading the bound port: %w", unix.EAFNOSUPPORT)
}
