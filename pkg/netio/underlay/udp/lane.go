// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"net"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/busypoll"
	"github.com/ropewalk/ropewalk/pkg/netio/internal/fdguard"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// lane is one socket with its message arrays. rx and pendingErr belong to the goroutine in Recv or TryRecv, tx to the one in Send.
type lane struct {
	port       *Port
	fd         int
	poller     busypoll.Poller // of the receiver
	receiving  fdguard.Guard
	sending    fdguard.Guard
	rx         *recvBatch
	tx         *sender
	pendingErr unix.Errno // error of TryRecv, which the next Recv returns
}

var _ underlay.Lane = (*lane)(nil)

func newLane(p *Port, fd int, busyPoll bool) *lane {
	return &lane{
		port: p, fd: fd, poller: busypoll.Poller{Busy: busyPoll}, receiving: fdguard.New(), sending: fdguard.New(),
		rx: newRecvBatch(), tx: newSender(p, fd, maxSendBatch),
	}
}

// Recv implements underlay.Lane. It returns at most maxRecvBatch elements.
func (l *lane) Recv(rx []underlay.Datagrams) (int, error) {
	if !l.receiving.Enter() {
		return 0, net.ErrClosed
	}
	n, err := l.recv(rx)
	l.receiving.Leave()
	return n, err
}

func (l *lane) recv(rx []underlay.Datagrams) (int, error) {
	if len(rx) == 0 {
		return 0, nil
	}
	if errno := l.pendingErr; errno != 0 {
		l.pendingErr = 0
		return 0, errno
	}
	msgs := l.rx.prepare(rx)
	for {
		n, errno := recvmmsg(l.fd, msgs)
		switch {
		case errno == 0: // the datagrams have left the socket, so return them even after Close
			l.rx.unpack(rx[:n])
			return n, nil
		case l.port.closed.Load():
			return 0, net.ErrClosed
		case errno == unix.EAGAIN:
			fds := [...]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}, {Fd: int32(l.port.secondary.stopFD), Events: unix.POLLIN}}
			if err := l.poller.Poll(fds[:]); err != nil {
				return 0, err
			}
		case errno != unix.EINTR:
			return 0, errno
		}
	}
}

// TryRecv implements underlay.Lane.
func (l *lane) TryRecv(rx []underlay.Datagrams) int {
	if len(rx) == 0 || !l.receiving.Enter() {
		return 0
	}
	n, errno := recvmmsg(l.fd, l.rx.prepare(rx))
	if errno != 0 {
		if n = 0; errno != unix.EAGAIN && errno != unix.EINTR && !l.port.closed.Load() {
			l.pendingErr = errno // the kernel reports it once
		}
	}
	l.rx.unpack(rx[:n])
	l.receiving.Leave()
	return n
}

// FD returns the lane's socket. It is readable when TryRecv has something, or the port is closed without Keep.
func (l *lane) FD() int { return l.fd }

// SendFD implements underlay.Lane. It is the socket that refused r in the last call of Send.
func (l *lane) SendFD(r *underlay.Run) int {
	if r.Check() != nil || r.Source >= l.port.sources.Len() {
		return -1
	}
	fd, _ := l.tx.socketOf(r)
	if full := l.tx.fullSocket(fd); full >= 0 {
		return full
	}
	return fd
}

// BeginWait implements underlay.Lane. Close shuts the sockets down, so a poll for them returns
// (POLLHUP). Only if the sockets of the port are kept, a poll goes on until its timeout.
func (l *lane) BeginWait() bool { return l.sending.Enter() }

// EndWait implements underlay.Lane.
func (l *lane) EndWait() { l.sending.Leave() }

// Send implements underlay.Lane.
func (l *lane) Send(runs []underlay.Run) (failed int) {
	if !l.sending.Enter() {
		for i := range runs {
			runs[i].Err = net.ErrClosed
		}
		return len(runs)
	}
	failed = l.tx.send(runs)
	l.sending.Leave()
	return failed
}
