// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// A program of the same user that sets SO_REUSEPORT can bind a port whose sockets have the option, and takes their datagrams. The kernel
// asks the first socket alone that it finds in the way (udp_lib_lport_inuse in net/ipv4/udp.c). This socket, the owner, has the option only
// while another one is bound to the port.
//
// The owner of a port with one socket is that socket. The sockets of several lanes always need the
// option. Otherwise the kernel does not distribute datagrams over them (inet_lookup_reuseport in
// net/ipv4/inet_hashtables.c). Their owner is the holder. It is in front of them in the kernel's
// lists, and receives nothing, because it is bound to a device that does not exist. IPv6 sockets
// with the option are appended to the lists and others are prepended (sk_add_node_rcu in
// include/net/sock.h). So the holder of IPv6 sockets is bound before the lanes, and the one of
// IPv4 sockets after them.
//
// A program that binds its socket to a device does not meet the holder, and can still join the port of several lanes. Where a sandbox refuses
// to bind the holder to a device, there is none. Any program of the same user can join while the owner has the option. All of these are
// found afterwards (reportForeign).

// noDevice is an interface index that no device has: the kernel counts up from 1.
const noDevice = math.MaxInt32

// warnOfNoHolder logs why a port has no holder.
func (c *Config) warnOfNoHolder(port uint16, err error) {
	if c.Log != nil {
		c.Log.Warn("reserving the listen port of several lanes failed, another program that sets SO_REUSEPORT can join the port and take datagrams", "port", port, "error", err)
	}
}

// openHolder opens the holder of a port of IPv4 sockets.
func openHolder(port uint16) (fd int, err error) {
	s := &socket{family: unix.AF_INET}
	if s.fd, err = newSocket(s.family); err != nil {
		return -1, fmt.Errorf("opening a UDP socket: %w", err)
	}
	if err = s.receiveNothing(); err == nil {
		err = s.bindShared(port)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(s.fd))
	}
	return s.fd, nil
}

// receiveNothing keeps the kernel from delivering datagrams to the socket.
func (s *socket) receiveNothing() error {
	return s.set(option{"SO_BINDTOIFINDEX", unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, noDevice})
}

// shareOwner sets SO_REUSEPORT of the socket that keeps other programs from the port of a source.
func (p *Port) shareOwner(source, on int) error {
	switch {
	case source > 0:
		return (&socket{fd: p.sources.Handle(source)}).reusePort(on)
	case p.holder >= 0:
		return (&socket{fd: p.holder}).reusePort(on)
	case len(p.lanes) > 1: // without a holder all have the option always
		return nil
	}
	return (&socket{fd: p.lanes[0].fd}).reusePort(on)
}

// bindBeside opens a socket on the port of a source. The caller holds p.opening.
func (p *Port) bindBeside(source int, bind func(*socket, uint16) error) (*socket, error) {
	if err := p.shareOwner(source, 1); err != nil {
		return nil, err
	}
	s, err := openBound(&p.config, p.sources.Port(source), bind)
	if err != nil {
		return nil, errors.Join(err, p.shareOwner(source, 0))
	}
	if err := errors.Join(s.reusePort(0), p.shareOwner(source, 0)); err != nil {
		return nil, errors.Join(err, unix.Close(s.fd))
	}
	return s, nil
}
