// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// Port is an underlay.Port over UDP sockets. Its methods may be called by any goroutine.
type Port struct {
	port   uint16
	family int
	gro    bool
	gso    atomic.Bool // revoked when the kernel answers EIO
	lanes  []*lane

	closed  atomic.Bool
	closing sync.Once
	// mu keeps the sockets open for those who are not a lane's owner: SendTo and SetMark hold it for reading.
	mu      sync.RWMutex
	senders sync.Pool // of *letter
}

var _ underlay.Port = (*Port)(nil)

// Open opens and binds the sockets. An error for a port that is taken satisfies errors.Is(err, syscall.EADDRINUSE).
// Without IPv6 on the host the port is IPv4 only; Features says so.
func Open(c Config) (*Port, error) {
	c = c.complete()
	if c.Lanes > MaxLanes {
		return nil, fmt.Errorf("opening %d lanes: at most %d", c.Lanes, MaxLanes)
	}
	socks, port, err := openSockets(&c)
	if err != nil {
		return nil, err
	}
	return newPort(socks, port), nil
}

func newPort(socks []*socket, port uint16) *Port {
	p := &Port{port: port, family: socks[0].family, gro: socks[0].gro}
	p.gso.Store(socks[0].gso)
	for _, s := range socks {
		p.lanes = append(p.lanes, newLane(p, s.fd))
	}
	p.senders.New = func() any { return newLetter(p) }
	return p
}

// Lane implements underlay.Port.
func (p *Port) Lane(i int) underlay.Lane { return p.lanes[i] }

// Lanes implements underlay.Port.
func (p *Port) Lanes() int { return len(p.lanes) }

// LocalPort implements underlay.Port.
func (p *Port) LocalPort() uint16 { return p.port }

// Features implements underlay.Port.
func (p *Port) Features() underlay.Features {
	return underlay.Features{GSO: p.gso.Load(), GRO: p.gro, IPv4: true, IPv6: p.family == unix.AF_INET6}
}

// SendTo implements underlay.Port. It blocks while lane 0's send buffer is full.
func (p *Port) SendTo(to *underlay.Endpoint, datagram []byte) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed.Load() {
		return net.ErrClosed
	}
	l := p.senders.Get().(*letter)
	defer p.senders.Put(l)
	return l.send(to, datagram)
}

// SetMark implements underlay.Port. After an error some lanes may have the new mark.
func (p *Port) SetMark(mark uint32) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed.Load() {
		return net.ErrClosed
	}
	for _, l := range p.lanes {
		if err := (&socket{fd: l.fd}).setMark(mark); err != nil {
			return err
		}
	}
	return nil
}

// Close implements underlay.Port. Further calls wait for the first and return nil.
func (p *Port) Close() (err error) {
	p.closing.Do(func() { err = p.close() })
	return err
}

// close first makes every blocked system call return: on an unconnected UDP socket shutdown(2) says ENOTCONN, and wakes
// receivers and senders all the same. Descriptors are closed once nobody can be using them.
func (p *Port) close() error {
	p.closed.Store(true)
	for _, l := range p.lanes {
		_ = unix.Shutdown(l.fd, unix.SHUT_RDWR)
	}
	for _, l := range p.lanes {
		l.receiving.Shut()
		l.sending.Shut()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, l := range p.lanes {
		if err := unix.Close(l.fd); err != nil {
			errs = append(errs, fmt.Errorf("closing a UDP socket: %w", err))
		}
	}
	return errors.Join(errs...)
}
