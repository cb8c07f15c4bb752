// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/internal/fdguard"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// secondaryPorts receives datagrams sent to any source. It waits for all sources at once, with epoll. Lanes need no
// epoll, because each has one socket.
type secondaryPorts struct {
	port      *Port
	epoll     int
	stopFD    int // an eventfd, readable once the port is closed
	receiving fdguard.Guard
	rx        *recvBatch
	ready     [1]unix.EpollEvent
}

func newSecondaryPorts(p *Port) (*secondaryPorts, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("opening an epoll instance: %w", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		_ = unix.Close(epoll)
		return nil, fmt.Errorf("opening an eventfd: %w", err)
	}
	s := &secondaryPorts{port: p, epoll: epoll, stopFD: stop, receiving: fdguard.New(), rx: newRecvBatch()}
	if err := s.watch(stop); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// watch adds a source's socket. Closing the socket removes it.
func (s *secondaryPorts) watch(fd int) error {
	err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	return os.NewSyscallError("epoll_ctl", err)
}

// Recv implements underlay.Receiver. Each call reads one source.
func (s *secondaryPorts) Recv(rx []underlay.Datagrams) (int, error) {
	if !s.receiving.Enter() {
		return 0, net.ErrClosed
	}
	n, err := s.recv(rx)
	s.receiving.Leave()
	return n, err
}

func (s *secondaryPorts) recv(rx []underlay.Datagrams) (int, error) {
	if len(rx) == 0 {
		return 0, nil
	}
	msgs := s.rx.prepare(rx)
	for {
		n, err := unix.EpollWait(s.epoll, s.ready[:], -1)
		switch {
		case s.port.closed.Load():
			return 0, net.ErrClosed
		case err != nil && err != unix.EINTR:
			return 0, err
		case n < 1:
			continue
		}
		// This does not block: a datagram with a wrong checksum may have caused the wake-up, and is gone.
		n, errno := recvmmsg(int(s.ready[0].Fd), msgs)
		switch errno {
		case 0:
			s.rx.unpack(rx[:n])
			return n, nil
		case unix.EAGAIN, unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// wake makes waiting Recv calls return once the port is closed. This includes lanes whose sockets are not shut down.
func (s *secondaryPorts) wake() { _, _ = unix.Write(s.stopFD, []byte{7: 1}) } // an eventfd accepts any eight bytes but all ones

// close closes the descriptors. No goroutine may be in Recv.
func (s *secondaryPorts) close() error { return errors.Join(unix.Close(s.epoll), unix.Close(s.stopFD)) }
