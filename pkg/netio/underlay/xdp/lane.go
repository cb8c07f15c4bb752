// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/busypoll"
	"github.com/ropewalk/ropewalk/pkg/netio/internal/fdguard"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// lane is a UDP socket and, usually, an AF_XDP socket.
type lane struct {
	port *Port
	udp  waiter
	// wakeFD is an eventfd. It becomes readable when the lane socket has changed or the port is closed.
	wakeFD     int
	laneSocket atomic.Pointer[laneSocket]
	receiving  fdguard.Guard
	sending    fdguard.Guard
	poller     busypoll.Poller // of the receiver
	rx         receiver
	tx         *sender
}

var _ underlay.Lane = (*lane)(nil)

func newLane(p *Port, slow waiter, index, lanes int) (*lane, error) {
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("opening an eventfd: %w", err)
	}
	return &lane{
		port: p, udp: slow, wakeFD: bell, receiving: fdguard.New(), sending: fdguard.New(),
		poller: busypoll.Poller{Busy: p.busyPoll}, tx: newSender(p, index, lanes),
	}, nil
}

// setLaneSocket sets or removes the AF_XDP socket.
func (l *lane) setLaneSocket(c *laneSocket) {
	l.laneSocket.Store(c)
	l.wake()
}

// wake makes a waiting Recv check its state again.
func (l *lane) wake() { _, _ = unix.Write(l.wakeFD, []byte{7: 1}) } // an eventfd accepts any eight bytes but all ones

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
		c := l.laneSocket.Load()
		if c != nil && !c.rx.Enter() {
			continue // it is being closed, and another one set
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

// SendFD implements underlay.Lane. Frames in the AF_XDP rings never fail with ErrSendBufferFull; runs sent through the UDP
// socket may.
func (l *lane) SendFD(r *underlay.Run) int { return l.udp.SendFD(r) }

// BeginWait implements underlay.Lane.
func (l *lane) BeginWait() bool { return l.udp.BeginWait() }

// EndWait implements underlay.Lane.
func (l *lane) EndWait() { l.udp.EndWait() }

// TryRecv implements underlay.Lane.
func (l *lane) TryRecv(rx []underlay.Datagrams) (n int) {
	if len(rx) == 0 || !l.receiving.Enter() {
		return 0
	}
	c := l.laneSocket.Load()
	if c == nil || c.rx.Enter() {
		n = l.take(c, rx)
		if c != nil {
			c.rx.Leave()
		}
	}
	l.receiving.Leave()
	return n
}

// maxXDPTurns is how often in a row the AF_XDP socket is read before the UDP socket. Reading the UDP socket costs a
// system call, and handshakes can wait for some batches.
const maxXDPTurns = 8

// take receives from both sockets without waiting. Neither socket can starve the other: if rx has one element, they
// take turns.
func (l *lane) take(c *laneSocket, rx []underlay.Datagrams) (n int) {
	if n = l.receivePrevious(c, rx); n > 0 {
		return n
	}
	due := c == nil || (l.rx.udpReady || l.rx.xdpTurns >= maxXDPTurns) && l.rx.coalescer.wait() == 0
	room := len(rx)
	if due && (room > 1 || l.rx.xdpTurns > 0) {
		room--
	}
	if c != nil {
		n = l.rx.receive(c, rx[:room], l.port)
	}
	l.rx.xdpTurns++
	if due && n < len(rx) {
		m := l.udp.TryRecv(rx[n:])
		l.rx.udpReady, l.rx.xdpTurns = m > 0, 0
		l.rx.coalescer.note(rx[n:n+m], n+m == len(rx))
		n += m
	}
	if c != nil && room == 0 && n == 0 {
		n = l.rx.receive(c, rx, l.port)
	}
	return n
}

// maxUDPDrain bounds the reads from the UDP socket for datagrams from before the lane socket was set, in case it never
// gets empty.
const maxUDPDrain = 64

// receivePrevious receives from the former path after a change, so that no datagram overtakes another. It reads the UDP
// socket before a new lane socket, and a lane socket that is being drained before the UDP socket.
func (l *lane) receivePrevious(c *laneSocket, rx []underlay.Datagrams) (n int) {
	if c != l.rx.lastSocket {
		l.rx.lastSocket, l.rx.udpDrainLeft = c, 0
		if c != nil {
			l.rx.udpDrainLeft = maxUDPDrain
		}
	}
	if l.rx.udpDrainLeft > 0 {
		l.rx.udpDrainLeft--
		if n = l.udp.TryRecv(rx); n == 0 {
			l.rx.udpDrainLeft = 0
		}
		return n
	}
	if c != nil && c.ending.Load() {
		return l.rx.receive(c, rx, l.port)
	}
	return 0
}

// wait blocks until one of the sockets is readable, or wake was called. A UDP socket that coalesces is not readable before the next read
// is due, but has been before, so that it will be read.
func (l *lane) wait(c *laneSocket) error {
	const udp, wake, xdp = 0, 1, 2
	fds := [...]unix.PollFd{
		udp: {Fd: int32(l.udp.FD()), Events: unix.POLLIN}, wake: {Fd: int32(l.wakeFD), Events: unix.POLLIN}, xdp: {Fd: -1},
	}
	limit := time.Duration(0)
	if c != nil {
		fds[xdp] = unix.PollFd{Fd: int32(c.socket.FD()), Events: unix.POLLIN}
		if limit = l.rx.coalescer.wait(); limit > 0 {
			fds[udp].Fd = -1
		}
	}
	if err := l.poll(c, fds[:], limit); err != nil {
		return fmt.Errorf("waiting for datagrams: %w", err)
	}
	if fds[wake].Revents != 0 {
		var count [8]byte
		_, _ = unix.Read(l.wakeFD, count[:]) // non-blocking; the value does not matter
	}
	l.rx.udpReady = l.rx.udpReady || fds[udp].Revents != 0
	return nil
}

// heldRetry is the time until frames that the device did not take are sent again, in milliseconds.
const heldRetry = 2

// poll waits for one of fds, but only briefly while the lane socket holds frames. No other goroutine would send them
// before the next Send, which may wait for an answer to these frames. A limit of 0 is none.
func (l *lane) poll(c *laneSocket, fds []unix.PollFd, limit time.Duration) error {
	if c == nil || !c.works() || !c.hasHeldFrames() {
		if limit > 0 {
			return busypoll.PollFor(fds, limit)
		}
		return l.poller.Poll(fds)
	}
	if err := c.socket.KickTx(); c.recordError(err) {
		notify(l.port.wake)
	}
	if _, err := unix.Poll(fds, heldRetry); err != nil && err != unix.EINTR {
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
	c := l.laneSocket.Load()
	if c != nil && c.works() && c.tx.Enter() {
		failed = l.tx.send(l, c, runs)
		c.tx.Leave()
	} else {
		l.tx.viaUDP.add(len(runs))
		failed = l.udp.Send(runs)
	}
	l.sending.Leave()
	return failed
}

// wakeForHeld wakes the receiving goroutine if the device did not take all frames. The receiving goroutine sends them
// later, because the sending goroutine may have nothing more to send.
func (l *lane) wakeForHeld(c *laneSocket) {
	if c.works() && c.hasHeldFrames() {
		l.wake()
	}
}

// close closes the descriptor. No goroutine may use the lane any more.
func (l *lane) close() error { return unix.Close(l.wakeFD) }
