// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// Sockets are the sockets of a Port, for another Port in this process or another one. Datagrams that arrive in between
// wait in them. Their owner closes them, or passes them to Open.
type Sockets struct {
	Lanes   []int // descriptors, in the order of the lanes
	Holder  []int // keeps other programs from the port of several lanes, or without lanes a Reservation's descriptor
	Sources []Source
	// Selection is the active selection, and Plans the number of its plans in the program; nil for none.
	Selection *underlay.Selection
	Plans     int
}

// Source is the socket of a source.
type Source struct {
	Port uint16
	FD   int
}

// FDs yields all descriptors: the lanes', the holder's, then the sources'.
func (s *Sockets) FDs(yield func(fd int) bool) {
	for _, fd := range slices.Concat(s.Lanes, s.Holder) {
		if !yield(fd) {
			return
		}
	}
	for _, source := range s.Sources {
		if !yield(source.FD) {
			return
		}
	}
}

// Close closes all descriptors.
func (s *Sockets) Close() error {
	var errs []error
	for fd := range s.FDs {
		errs = append(errs, unix.Close(fd))
	}
	*s = Sockets{}
	return errors.Join(errs...)
}

// Keep returns duplicates of the sockets, except the sockets of send groups. A later Close then
// leaves them bound, with the datagrams in their buffers. Keep makes OpenSource, OpenGroup,
// SetSelection and SetMark fail. Errors are net.ErrClosed and a lack of descriptors; after the
// latter the Port is unchanged.
func (p *Port) Keep() (s *Sockets, err error) {
	p.opening.Lock()
	defer p.opening.Unlock()
	if p.closed.Load() || p.kept {
		return nil, net.ErrClosed
	}
	s = &Sockets{}
	if p.selects.Load() && len(p.lanes) > 1 {
		standing := p.selection.Clone()
		s.Selection, s.Plans = &standing, p.selectionPlans
	}
	for _, l := range p.lanes {
		fd, err := duplicate(l.fd)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.Lanes = append(s.Lanes, fd)
	}
	if p.holder >= 0 {
		fd, err := duplicate(p.holder)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.Holder = []int{fd}
	}
	for i := 1; i < p.sources.Len(); i++ {
		fd, err := duplicate(p.sources.Handle(i))
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.Sources = append(s.Sources, Source{p.sources.Port(i), fd})
	}
	p.kept = true
	return s, nil
}

func duplicate(fd int) (int, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicating a UDP socket: %w", err)
	}
	return dup, nil
}

// errForeignSocket is the error for a descriptor that is not a socket of the expected port.
var errForeignSocket = errors.New("not a UDP socket of this port")

// inheritSockets takes over the sockets of another Port, after it has checked each of them. After an error the caller
// still owns them.
func inheritSockets(c *Config) (*laneSockets, error) {
	if len(c.Sockets.Lanes) != c.Lanes {
		return nil, fmt.Errorf("taking over the sockets of %d lanes for a port with %d lanes", len(c.Sockets.Lanes), c.Lanes)
	}
	all := &laneSockets{holder: -1, port: c.Port}
	for i, fd := range c.Sockets.Lanes {
		s, bound, err := inheritSocket(c, fd)
		if err == nil && (all.port != 0 && bound != all.port || i > 0 && s.family != all.lanes[0].family) {
			err = errForeignSocket
		}
		if err != nil {
			return nil, fmt.Errorf("taking over the socket of lane %d: %w", i, err)
		}
		all.lanes, all.port = append(all.lanes, s), bound
	}
	for _, fd := range c.Sockets.Holder {
		s, bound, err := identify(fd)
		if err == nil && (bound != all.port || s.family != all.lanes[0].family) {
			err = errForeignSocket
		}
		if err != nil {
			return nil, fmt.Errorf("taking over the holder of the port: %w", err)
		}
		all.holder = fd
	}
	return all, nil
}

// inheritSocket sets the options of an existing socket.
func inheritSocket(c *Config, fd int) (*socket, uint16, error) {
	s, bound, err := identify(fd)
	if err != nil {
		return nil, 0, err
	}
	if s.family == unix.AF_INET {
		c.NoIPv6 = true
	}
	if err := s.configure(c); err != nil {
		return nil, 0, err
	}
	return s, bound, nil
}

// identify finds out about an existing socket.
func identify(fd int) (*socket, uint16, error) {
	s := &socket{fd: fd, bound: true}
	for option, want := range map[int]int{unix.SO_TYPE: unix.SOCK_DGRAM, unix.SO_PROTOCOL: unix.IPPROTO_UDP} {
		if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option); err != nil || got != want {
			return nil, 0, errors.Join(errForeignSocket, err)
		}
	}
	var err error
	if s.family, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || s.family != unix.AF_INET && s.family != unix.AF_INET6 {
		return nil, 0, errors.Join(errForeignSocket, err)
	}
	bound, err := s.localPort()
	return s, bound, err
}

// inheritSources takes over the sources of another Port, in their order, and its selection.
func (p *Port) inheritSources(from *Sockets) error {
	for _, source := range from.Sources {
		_, err := p.sources.Add(source.Port, func() (int, error) {
			c := p.config
			s, bound, err := inheritSocket(&c, source.FD)
			if err == nil && (bound != source.Port || s.family != p.family) {
				err = errForeignSocket
			}
			if err == nil {
				err = p.secondary.watch(source.FD)
			}
			return source.FD, err
		})
		if err != nil {
			return fmt.Errorf("taking over the source port %d: %w", source.Port, err)
		}
	}
	if from.Selection != nil {
		p.selection, p.selectionPlans = from.Selection.Clone(), from.Plans
		p.selects.Store(true)
	}
	return nil
}
