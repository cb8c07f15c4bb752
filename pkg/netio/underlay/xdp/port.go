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

// udpPort is the port beside AF_XDP.
type udpPort = underlay.Port

// Port is an underlay.Port whose lanes have an AF_XDP socket each, beside the UDP socket of another Port. Any goroutine
// may call its methods.
type Port struct {
	udpPort    // has what is not about AF_XDP: sources, groups, and all that sends or receives outside the lanes
	port       uint16
	lanes      []*lane
	table      *table
	supervisor *supervisor
	wake       chan struct{} // wakes the supervisor; capacity one
	busyPoll   bool
	firstID    uint16

	dontFragment atomic.Bool // of IPv4 frames
	closed       atomic.Bool
	closing      sync.Once
}

var (
	_ underlay.Port         = (*Port)(nil)
	_ underlay.Selector     = (*Port)(nil)
	_ underlay.TrainLimiter = (*Port)(nil)
)

// Open opens an AF_XDP socket for each lane of Config.UDP that has a queue, attaches the program, and maintains both
// until Close. Missing resources do not make Open fail. The UDP port then carries everything, and Status gives the
// reason. The supervisor retries at increasing intervals and whenever the device changes.
//
// The Port belongs to the calling thread's network namespace, as the UDP port should. If that is not the process's own
// namespace, Open needs CAP_SYS_ADMIN. Errors are an invalid configuration, or too few resources that every process
// needs: descriptors, netlink sockets. After an error the caller still owns the UDP port.
func Open(c Config) (*Port, error) {
	waiters, err := c.waiters()
	if err != nil {
		return nil, fmt.Errorf("setting up AF_XDP beside the UDP port: %w", err)
	}
	wake := make(chan struct{}, 1)
	p := &Port{
		udpPort: c.UDP, port: c.UDP.LocalPort(), table: newTable(wake), wake: wake, busyPoll: c.BusyPoll, firstID: uint16(rand.Uint32()),
	}
	p.dontFragment.Store(c.UDP.Features().DontFragment)
	for i, w := range waiters {
		l, err := newLane(p, w, i, len(waiters))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("setting up AF_XDP beside the UDP port: %w", err), p.closeLanes())
		}
		l.rx.coalescer.mayWait = c.MayWait
		p.lanes = append(p.lanes, l)
	}
	if p.supervisor, err = startSupervisor(p, &c); err != nil {
		return nil, errors.Join(fmt.Errorf("setting up AF_XDP beside the UDP port: %w", err), p.closeLanes())
	}
	return p, nil
}

// Lane implements underlay.Port.
func (p *Port) Lane(i int) underlay.Lane { return p.lanes[i] }

// OpenSource implements underlay.Port. The source has a UDP socket too, so that no other program gets the port.
func (p *Port) OpenSource(port uint16) (source int, err error) {
	source, err = p.udpPort.OpenSource(port)
	notify(p.wake) // the program has to know it
	return source, err
}

// SetMark implements underlay.Port. Everything uses the UDP socket until the paths of marked packets are resolved.
func (p *Port) SetMark(mark uint32) error {
	if err := p.udpPort.SetMark(mark); err != nil {
		return err
	}
	p.supervisor.setMark(mark)
	return nil
}

// SetFragments implements underlay.Port. Everything uses the UDP socket until the paths are resolved again.
func (p *Port) SetFragments(permitted bool) error {
	err := p.udpPort.SetFragments(permitted)
	p.dontFragment.Store(p.udpPort.Features().DontFragment)
	p.table.clear() // the longest packets are others
	return err
}

// SetTrainsLost implements underlay.TrainLimiter. AF_XDP has no trains. Tests leave from the UDP socket (SendRun).
func (p *Port) SetTrainsLost(to underlay.Destination, lost bool) bool {
	udp, ok := p.udpPort.(underlay.TrainLimiter)
	return ok && udp.SetTrainsLost(to, lost)
}

// SetSelection implements underlay.Selector for datagrams that the UDP sockets receive. Datagrams from AF_XDP belong to
// the lane of their queue: the device's hash keeps the datagrams of one source in one queue. If the UDP port is no
// Selector, the error satisfies errors.Is(err, errors.ErrUnsupported).
func (p *Port) SetSelection(s *underlay.Selection) (plans int, err error) {
	selector, ok := p.udpPort.(underlay.Selector)
	if !ok {
		return 0, fmt.Errorf("selecting lanes: not implemented by the UDP port: %w", errors.ErrUnsupported)
	}
	return selector.SetSelection(s)
}

// Reconsider makes the supervisor call Config.Choose soon.
func (p *Port) Reconsider() {
	p.supervisor.reconsidering.Store(true)
	notify(p.wake)
}

// Status returns the state of the port.
func (p *Port) Status() Status { return p.supervisor.status() }

// Close implements underlay.Port. It detaches the program and closes the UDP port too. Further calls wait for the first
// one and return nil.
func (p *Port) Close() (err error) {
	p.closing.Do(func() { err = p.close() })
	return err
}

func (p *Port) close() error {
	p.closed.Store(true)
	for _, l := range p.lanes {
		l.wake()
	}
	// The UDP port is first: closing it wakes senders that wait for room in its send buffers.
	err := p.udpPort.Close()
	return errors.Join(err, p.supervisor.stop(), p.closeLanes())
}

// closeLanes closes the lanes once no goroutine uses them.
func (p *Port) closeLanes() error {
	var errs []error
	for _, l := range p.lanes {
		l.receiving.Close()
		l.sending.Close()
		errs = append(errs, l.close())
	}
	return errors.Join(errs...)
}
