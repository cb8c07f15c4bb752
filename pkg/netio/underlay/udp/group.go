// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// sendGroup is the sockets of one send group, which only send: one for each source, which all
// lanes share. Each has a send buffer of its own. They are bound to the ports of their sources and
// to an address that no host has. So the kernel never delivers to them, and the lanes' reuseport
// group stays as it is. The source address of each datagram is given with it.
type sendGroup struct {
	fds [1 + underlay.MaxSources]atomic.Int32 // by source: the descriptor, plus 1; 0 for none
}

// groupAddress returns the address to which a send group is bound, which is reserved (RFC 1112, section 4). Clouds give lower addresses of
// that block to nodes. An IPv6 socket that is bound to an IPv6 address could not send to IPv4.
func groupAddress(group int) netip.Addr { return netip.AddrFrom4([4]byte{255, 255, 255, byte(group)}) }

// OpenGroup implements underlay.Port.
func (p *Port) OpenGroup(group int) error {
	if group <= 0 || group >= underlay.MaxGroups {
		return fmt.Errorf("opening send group %d: %w", group, unix.EINVAL)
	}
	p.opening.Lock()
	defer p.opening.Unlock()
	switch {
	case p.closed.Load() || p.kept:
		return net.ErrClosed
	case p.groups[group].Load() != nil:
		return nil
	}
	g := new(sendGroup)
	for source := range p.sources.Len() {
		if err := p.addToGroup(g, group, source); err != nil {
			for fd := range g.sockets {
				_ = unix.Close(fd)
			}
			return fmt.Errorf("opening send group %d: %w", group, err)
		}
	}
	p.groups[group].Store(g)
	p.noteOpened(p.sources.Len())
	return nil
}

// controlGroup is the group of SendTo and SendRun. Handshakes, keepalives and packets that waited
// for a session find room in its send buffer when the lanes have none. Only the listen port has a
// socket in it.
const controlGroup = underlay.MaxGroups

// controlSendBuffer is the send buffer of the control group in bytes. Nobody sends again what it
// refuses, and 1 MiB may have waited for a session. The kernel doubles the size, and charges the
// memory of packets (truesize). That is 1.6 times the size of full packets, also after a network
// device had to segment their train.
const controlSendBuffer = 2 << 20

// openControlGroup opens the control group, and the source lookup of all groups. Without it lane
// 0's socket takes its place.
func (p *Port) openControlGroup() {
	if p.family == unix.AF_INET6 {
		p.routed.open(&p.config)
	}
	g := new(sendGroup)
	if p.addToGroup(g, controlGroup, 0) != nil {
		return
	}
	for fd := range g.sockets {
		setSendBuffer(fd, controlSendBuffer)
	}
	p.groups[controlGroup].Store(g)
}

// addToGroups adds a new source to all open groups, and returns to how many. Where that fails the source uses its own socket.
func (p *Port) addToGroups(source int) (n int) {
	for group := range underlay.MaxGroups {
		if g := p.groups[group].Load(); g != nil && p.addToGroup(g, group, source) == nil {
			n++
		}
	}
	return n
}

// addToGroup opens the socket of a source in a group. The caller holds p.opening.
func (p *Port) addToGroup(g *sendGroup, group, source int) error {
	s, err := p.bindBeside(source, func(s *socket, port uint16) error { return s.bindToGroup(port, group) })
	if err != nil {
		return err
	}
	if err := errors.Join(checkDescriptorReserve(s.fd), checkNamespace(s.fd, p.lanes[0].fd)); err != nil {
		return errors.Join(err, unix.Close(s.fd))
	}
	g.fds[source].Store(int32(s.fd) + 1)
	return nil
}

// errOtherNamespace means that the calling thread is in another network namespace than the port.
var errOtherNamespace = errors.New("the port is in another network namespace")

// checkNamespace returns errOtherNamespace for sockets of two network namespaces (SO_NETNS_COOKIE, Linux 5.14; nil before).
func checkNamespace(a, b int) error {
	cookieA, errA := unix.GetsockoptUint64(a, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	cookieB, errB := unix.GetsockoptUint64(b, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errA == nil && errB == nil && cookieA != cookieB {
		return errOtherNamespace
	}
	return nil
}

// bindToGroup binds to a port and the address of a group.
func (s *socket) bindToGroup(port uint16, group int) error {
	err := s.reusePort(1)
	if err == nil {
		err = s.freeBind(1)
	}
	if err == nil {
		err = s.bindTo(groupAddress(group), port)
	}
	if err == nil && (group == probeGroup || group == fragmentGroup) {
		err = s.configureOwn(group)
	}
	if err != nil {
		return err
	}
	return s.freeBind(0) // a source address that the host has lost must be an error
}

// freeBind allows the use of addresses that the host does not have. IPv6 sockets also have this
// option of IPv4.
func (s *socket) freeBind(on int) error {
	return s.set(option{"IP_FREEBIND", unix.SOL_IP, unix.IP_FREEBIND, on})
}

// sockets yields the descriptors of a group.
func (g *sendGroup) sockets(yield func(fd int) bool) {
	for i := range g.fds {
		if fd := g.fds[i].Load(); fd > 0 && !yield(int(fd)-1) {
			return
		}
	}
}

// groupSocket returns the descriptor from which a run leaves in a group, and the source address
// that goes with its messages. The descriptor is -1 if the source's socket takes its place: the
// group has no socket, or there is no source address.
func (p *Port) groupSocket(r *underlay.Run, group int) (fd int, from netip.Addr) {
	fd = -1
	if g := p.groups[group].Load(); g != nil {
		fd = int(g.fds[r.Source].Load()) - 1
	}
	if fd >= 0 {
		from = p.groupSource(r.To)
	}
	if !from.IsValid() {
		return -1, from
	}
	return fd, from
}

// groupSource returns the source address of messages that leave from a group's socket. Without it
// they would have the socket's address.
func (p *Port) groupSource(to *underlay.Endpoint) netip.Addr {
	switch ipv4 := to.Dst.Addr().Is4(); {
	case to.Src.IsValid() && ipv4 == to.Src.Is4():
		return to.Src
	case ipv4:
		return netip.IPv4Unspecified() // leaves it to routing
	}
	return p.routed.source(to)
}
