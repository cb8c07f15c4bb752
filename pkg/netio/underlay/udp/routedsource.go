// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// routedSources finds the source address that routing chooses for an IPv6 endpoint. Sockets of
// send groups need it for endpoints without a source address, as they are bound to an address that
// no host has. With IPv6 a message cannot leave the choice to routing then (udpv6_sendmsg in
// net/ipv6/udp.c). Peers lack one until they are heard from, so an entry is used for a short time.
type routedSources struct {
	mu    sync.Mutex
	fd    int // an unbound socket in the network namespace and with the mark of the others, -1 for none
	known map[underlay.Destination]routedSource
}

type routedSource struct {
	addr  netip.Addr // invalid for no route
	until time.Time
}

const (
	// routedSourceLifetime is the time after which routing is asked again. A source address that the host loses meanwhile costs one more
	// system call per message.
	routedSourceLifetime = time.Second
	// maxRoutedSources is the maximum number of entries. Beyond it all are looked up again.
	maxRoutedSources = 256
)

// open opens the socket. Without it there are no source addresses.
func (r *routedSources) open(c *Config) {
	fd, err := newSocket(unix.AF_INET6)
	if err != nil {
		return
	}
	r.fd = fd
	if c.Mark != 0 {
		_ = r.setMark(c.Mark) // the lanes' sockets could set it
	}
}

func (r *routedSources) setMark(mark uint32) error {
	if r.fd < 0 {
		return nil
	}
	return (&socket{fd: r.fd}).setMark(mark)
}

// close closes the socket. Lookups find no source address from then on.
func (r *routedSources) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd < 0 {
		return nil
	}
	fd := r.fd
	r.fd = -1
	return unix.Close(fd)
}

// source returns the source address for an IPv6 endpoint, the zero Addr for none.
func (r *routedSources) source(to *underlay.Endpoint) netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	key, now := to.Destination(), time.Now()
	if s, ok := r.known[key]; ok && now.Before(s.until) {
		return s.addr
	}
	if r.known == nil || len(r.known) >= maxRoutedSources {
		r.known = map[underlay.Destination]routedSource{}
	}
	addr := r.lookUp(to)
	r.known[key] = routedSource{addr, now.Add(routedSourceLifetime)}
	return addr
}

// lookUp connects the socket, which sends nothing, reads its address, and disconnects it: otherwise it would keep its address.
func (r *routedSources) lookUp(to *underlay.Endpoint) netip.Addr {
	if r.fd < 0 || unix.Connect(r.fd, &unix.SockaddrInet6{Port: int(to.Dst.Port()), ZoneId: to.Scope, Addr: to.Dst.Addr().As16()}) != nil {
		return netip.Addr{}
	}
	name, err := unix.Getsockname(r.fd)
	if errno := disconnect(r.fd); err != nil || errno != 0 {
		return netip.Addr{}
	}
	local, ok := name.(*unix.SockaddrInet6)
	if !ok {
		return netip.Addr{}
	}
	return netip.AddrFrom16(local.Addr)
}
