// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"fmt"
	"net"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/busypoll"
	"github.com/ropewalk/ropewalk/pkg/netio/internal/fdguard"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// lane is a UDP socket and, most of the time, an AF_XDP socket.
type lane struct {
	port *Port
	slow waiter
	// bell is an eventfd: the lane's circuit has changed, or the port is closed.
	bell      int
	circuit   atomic.Pointer[laneSocket]
	receiving fdguard.Guard
	sending   fdguard.Guard
	rx        receiver
	tx        *sender
}

var _ underlay.Lane = (*lane)(nil)

func newLane(p *Port, slow waiter, index, lanes int) (*lane, error) {
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("opening an eventfd: %w", err)
	}
	return &lane{
		port: p, slow: slow, bell: bell, receiving: fdguard.New(), sending: fdguard.New(), tx: newSender(p, index, lanes),
	}, nil
}

// set puts a circuit into use, or none.
func (l *lane) set(c *laneSocket) {
	l.circuit.Store(c)
	l.ring()
}

// ring makes a Recv that waits look around.
func (l *lane) ring() { _, _ = unix.Write(l.bell, []byte{7: 1}) } // an eventfd takes any eight bytes but all ones

// Recv implements underlay.Lane.
func (l *lane) Recv(rx []underlay.Datagrams) (int, error) {
	if !l.receiving.Enter() {
		return 0, net.ErrClosed
	}
	n, err := l.recv(rx)
	l.receiving.Leave()
	return n, err
}

func (l *lane) recv(rx []underlay.Datagrams) (n int, err error) {
	if len(rx) == 0 {
		return 0, nil
	}
	for n == 0 && err == nil {
		if l.port.closed.Load() {
			return 0, net.ErrClosed
		}
		c := l.circuit.Load()
		if c != nil && !c.rx.Enter() {
			continue // it is being retired, and another one set
		}
		if n = l.take(c, rx); n == 0 {
			err = l.wait(c)
		}
		if c != nil {
			c.rx.Leave()
		}
	}
	return n, err
}

// TryRecv implements underlay.Lane.
func (l *lane) TryRecv(rx []underlay.Datagrams) (n int) {
	if len(rx) == 0 || !l.receiving.Enter() {
		return 0
	}
	c := l.circuit.Load()
	if c == nil || c.rx.Enter() {
		n = l.take(c, rx)
		if c != nil {
			c.rx.Leave()
		}
	}
	l.receiving.Leave()
	return n
}

// patience is how often in a row AF_XDP is looked at before the UDP socket is: a look at that costs a system call, and
// handshakes can wait for some batches.
const patience = 8

// useBinding receives what there is without waiting, from both sockets. Neither keeps the other from its share of rx: with only one
// element they take turns.
func (l *lane) take(c *laneSocket, rx []underlay.Datagrams) (n int) {
	if n = l.receivePrevious(c, rx); n > 0 {
		return n
	}
	due := c == nil || l.rx.slow || l.rx.turns >= patience
	room := len(rx)
	if due && (room > 1 || l.rx.turns > 0) {
		room--
	}
	if c != nil {
		n = l.rx.receive(c, rx[:room], l.port)
	}
	l.rx.turns++
	if due && n < len(rx) {
		m := l.slow.TryRecv(rx[n:])
		l.rx.slow, l.rx.turns = m > 0, 0
		n += m
	}
	if c != nil && room == 0 && n == 0 {
		n = l.rx.receive(c, rx, l.port)
	}
	return n
}

// backlog bounds the looks at the UDP socket for what came before there was a circuit, in case it never gets empty.
const backlog = 64

// receivePrevious receives what came by the way before, when that has just changed, so that nothing overtakes it: from the UDP socket
// before a new circuit, and from the circuit that is ending before the UDP socket.
func (l *lane) receivePrevious(c *laneSocket, rx []underlay.Datagrams) (n int) {
	if c != l.rx.last {
		l.rx.last, l.rx.older = c, 0
		if c != nil {
			l.rx.older = backlog
		}
	}
	if l.rx.older > 0 {
		l.rx.older--
		if n = l.slow.TryRecv(rx); n == 0 {
			l.rx.older = 0
		}
		return n
	}
	if c != nil && c.ending.Load() {
		return l.rx.receive(c, rx, l.port)
	}
	return 0
}

// wait blocks until one of the sockets has something, or the bell rings.
func (l *lane) wait(c *laneSocket) error {
	const slow, bell, express = 0, 1, 2
	fds := [...]unix.PollFd{
		slow: {Fd: int32(l.slow.FD()), Events: unix.POLLIN}, bell: {Fd: int32(l.bell), Events: unix.POLLIN}, express: {Fd: -1},
	}
	if c != nil {
		fds[express] = unix.PollFd{Fd: int32(c.socket.FD()), Events: unix.POLLIN}
	}
	if err := l.poll(c, fds[:]); err != nil {
		return fmt.Errorf("waiting for datagrams: %w", err)
	}
	if fds[bell].Revents != 0 {
		var count [8]byte
		_, _ = unix.Read(l.bell, count[:]) // it does not block, and what it read says nothing
	}
	l.rx.slow = l.rx.slow || fds[slow].Revents != 0
	return nil
}

// heldPause is how long frames that the device did not take wait for another try, in milliseconds.
const heldPause = 2

// poll waits for one of fds, but not for long while the circuit holds frames: nobody else would try to send them before there are
// more, which may wait for an answer to these.
func (l *lane) poll(c *laneSocket, fds []unix.PollFd) error {
	if c == nil || !c.works() || !c.holds() {
		return busypoll.Poll(fds, l.port.linger)
	}
	if err := c.socket.KickTx(); c.recordError(err) {
		ring(l.port.wake)
	}
	if _, err := unix.Poll(fds, heldPause); err != nil && err != unix.EINTR {
		return err
	}
	return nil
}

// Send implements underlay.Lane.
func (l *lane) Send(runs []underlay.Run) (failed int) {
	if !l.sending.Enter() {
		for i := range runs {
			runs[i].Err = net.ErrClosed
		}
		return len(runs)
	}
	c := l.circuit.Load()
	if c != nil && c.works() && c.tx.Enter() {
		failed = l.tx.send(l, c, runs)
		c.tx.Leave()
	} else {
		l.tx.slow.add(len(runs))
		failed = l.slow.Send(runs)
	}
	l.sending.Leave()
	return failed
}

// leave has the receiving goroutine look after frames that the device did not take: the sending one may have nothing more to send.
func (l *lane) leave(c *laneSocket) {
	if c.works() && c.holds() {
		l.ring()
	}
}

// close gives the descriptor back, when nobody is in the lane.
func (l *lane) close() error { return unix.Close(l.bell) }
