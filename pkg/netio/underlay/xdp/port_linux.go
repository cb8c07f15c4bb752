// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// Port is an underlay.Port whose lanes have an AF_XDP socket each, beside the UDP socket of another Port. Its methods may be
// called by any goroutine.
type Port struct {
	udp     underlay.Port
	port    uint16
	lanes   []*lane
	table   *table
	keeper  *supervisor
	wake    chan struct{} // tells the keeper to look around, with room for one
	linger  bool
	firstID uint16
	closed  atomic.Bool
	closing sync.Once
}

var (
	_ underlay.Port     = (*Port)(nil)
	_ underlay.Selector = (*Port)(nil)
)

// Open opens an AF_XDP socket for each lane of Config.UDP that has a queue, attaches the program, and goes on with both for as long
// as the Port is open. What cannot be had does not keep it from opening: the UDP port carries everything meanwhile, Status
// says why, and it is tried again, in ever longer intervals and whenever the device changes.
//
// The Port belongs to the calling thread's network namespace, as the UDP port should. When that is not the process's own, it
// takes CAP_SYS_ADMIN. Errors are about the configuration and about what any process has: descriptors, netlink sockets.
// After an error the UDP port is still the caller's.
func Open(c Config) (*Port, error) {
	waiters, err := c.waiters()
	if err != nil {
		return nil, fmt.Errorf("opening an XDP port: %w", err)
	}
	wake := make(chan struct{}, 1)
	p := &Port{
		udp: c.UDP, port: c.UDP.LocalPort(), table: newTable(wake), wake: wake, linger: c.BusyPoll, firstID: uint16(rand.Uint32()),
	}
	for i, w := range waiters {
		l, err := newLane(p, w, i, len(waiters))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("opening an XDP port: %w", err), p.closeLanes())
		}
		p.lanes = append(p.lanes, l)
	}
	if p.keeper, err = startSupervisor(p, &c); err != nil {
		return nil, errors.Join(fmt.Errorf("opening an XDP port: %w", err), p.closeLanes())
	}
	return p, nil
}

// Lane implements underlay.Port.
func (p *Port) Lane(i int) underlay.Lane { return p.lanes[i] }

// Lanes implements underlay.Port.
func (p *Port) Lanes() int { return len(p.lanes) }

// LocalPort implements underlay.Port.
func (p *Port) LocalPort() uint16 { return p.port }

// OpenSource implements underlay.Port. The source has a UDP socket too, so that nobody else gets the port.
func (p *Port) OpenSource(port uint16) (source int, err error) { return p.udp.OpenSource(port) }

// Strays implements underlay.Port.
func (p *Port) SecondaryPorts() underlay.Receiver { return p.udp.SecondaryPorts() }

// Source implements underlay.Port.
func (p *Port) Source(source int) uint16 { return p.udp.Source(source) }

// SendTo implements underlay.Port. It uses the UDP socket, as handshakes do for both ways.
func (p *Port) SendTo(to *underlay.Endpoint, datagram []byte) error {
	return p.udp.SendTo(to, datagram)
}

// SendRun implements underlay.Port. It uses the UDP socket.
func (p *Port) SendRun(r *underlay.Run) error { return p.udp.SendRun(r) }

// SetMark implements underlay.Port. Everything goes by the UDP socket until it is known where marked packets go.
func (p *Port) SetMark(mark uint32) error {
	if err := p.udp.SetMark(mark); err != nil {
		return err
	}
	p.keeper.setMark(mark)
	return nil
}

// SetSelection implements underlay.Selector for what the UDP sockets receive. What AF_XDP receives has the lane of its queue,
// where the device's hash keeps what has one source. Without a Selector for a UDP port the error satisfies
// errors.Is(err, errors.ErrUnsupported).
func (p *Port) SetSelection(s *underlay.Selection) (plans int, err error) {
	selector, ok := p.udp.(underlay.Selector)
	if !ok {
		return 0, fmt.Errorf("selecting lanes: the UDP port does not: %w", errors.ErrUnsupported)
	}
	return selector.SetSelection(s)
}

// Features implements underlay.Port: what the UDP port can do. Status says what AF_XDP can.
func (p *Port) Features() underlay.Features { return p.udp.Features() }

// Reconsider has Config.Choose asked again, soon.
func (p *Port) Reconsider() {
	p.keeper.reconsidering.Store(true)
	ring(p.wake)
}

// Status says how the port is.
func (p *Port) Status() Status { return p.keeper.status() }

// Close implements underlay.Port. It takes the program off, and closes the UDP port too. Further calls wait for the first and
// return nil.
func (p *Port) Close() (err error) {
	p.closing.Do(func() { err = p.close() })
	return err
}

func (p *Port) close() error {
	p.closed.Store(true)
	for _, l := range p.lanes {
		l.ring()
	}
	// The UDP port first: it wakes those who wait for room in its send buffers.
	err := p.udp.Close()
	return errors.Join(err, p.keeper.stop(), p.closeLanes())
}

// closeLanes ends the lanes once nobody is in them.
func (p *Port) closeLanes() error {
	var errs []error
	for _, l := range p.lanes {
		l.receiving.Close()
		l.sending.Close()
		errs = append(errs, l.close())
	}
	return errors.Join(errs...)
}
