// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"iter"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
	"github.com/ropewalk/ropewalk/pkg/netio/toobig"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// Port is an underlay.Port over UDP sockets. Its methods may be called by any goroutine.
type Port struct {
	boundPort
	gro       bool
	gso       bool
	filter    bool // the filter drops trains of initiations
	lanes     []*lane
	secondary *secondaryPorts
	sources   *underlay.Sources                 // a handle is a descriptor; source 0 has none, because each lane has its own socket
	groups    [groups]atomic.Pointer[sendGroup] // nil for groups that are not open, and for group 0
	routed    routedSources
	paths     pathLimits
	limits    sendLimits
	senders   sync.Pool                                      // of *singleSender
	sendNow   func(fd int, msgs []message) (int, unix.Errno) // sendmmsg; tests replace it
	drops     dropCounters
	underlay.Loops
	fragmentState
	selectionState
	closeState

	// opening is held by OpenSource and OpenGroup, by SetMark (the next socket gets its mark), by SetSelection, and by Close
	// to end them.
	opening sync.Mutex
	config  Config // of the next source, and of send groups
}

// boundPort is the listen port.
type boundPort struct {
	port   uint16
	family int
	holder int // the descriptor of a socket that receives nothing and keeps other programs from the port, -1 for none

	opened      int                       // sockets that joined the port or its sources; opening guards it
	foreign     map[uint64]bool           // the inodes of sockets of other programs that were logged; opening guards it
	listSockets iter.Seq[*netlink.Socket] // eachBoundSocket; tests replace it
}

// fragmentState is about outer packets that exceed the path MTU.
type fragmentState struct {
	tooBig          *toobig.Listener // nil for none
	dontFragment    atomic.Bool
	fragmentSockets [1 + underlay.MaxSources]atomic.Bool // by source: a socket in fragmentGroup was requested
}

// selectionState is the program that selects the lane of a received datagram.
type selectionState struct {
	selects              atomic.Bool        // a selection is active
	selection            underlay.Selection // the active selection
	selectionPlans       int                // the number of its plans in the program
	selectionReplaceable bool               // the kernel can replace a selection safely
	maxInstructions      int                // limit of the next program
}

// closeState closes the sockets once.
type closeState struct {
	closed  atomic.Bool
	closing sync.Once
	// mu keeps the sockets open for goroutines without a lane: SendTo and SetMark hold it for reading.
	mu            sync.RWMutex
	socketsClosed bool
	kept          bool // Keep has duplicated the sockets: Close does not shut them down
}

var (
	_ underlay.Port         = (*Port)(nil)
	_ underlay.TrainLimiter = (*Port)(nil)
)

// Open opens and binds the sockets. The error for a port in use satisfies errors.Is(err, syscall.EADDRINUSE). Without
// IPv6 on the host the port is IPv4 only, as Features reports.
func Open(c Config) (*Port, error) {
	c = c.complete()
	if c.Lanes > MaxLanes {
		return nil, fmt.Errorf("opening %d lanes: at most %d", c.Lanes, MaxLanes)
	}
	tooBig := c.listenTooBig()
	open := openNew
	if c.Sockets != nil {
		open = inherit
	}
	p, err := open(&c)
	if err != nil {
		if tooBig != nil {
			_ = tooBig.Close()
		}
		return nil, err
	}
	p.tooBig = tooBig
	p.dontFragment.Store(!c.Fragments)
	return p, nil
}

// openNew is Open for new sockets.
func openNew(c *Config) (*Port, error) {
	socks, err := openSockets(c)
	if err != nil {
		return nil, err
	}
	p := newPort(c, socks)
	if err = p.shareOwner(0, 0); err == nil {
		p.secondary, err = newSecondaryPorts(p)
	}
	if err != nil {
		socks.close()
		return nil, err
	}
	p.openControlGroup()
	p.reportForeign()
	return p, nil
}

// inherit is Open for existing sockets.
func inherit(c *Config) (*Port, error) {
	socks, err := inheritSockets(c)
	if err != nil {
		return nil, err
	}
	p := newPort(c, socks)
	if p.secondary, err = newSecondaryPorts(p); err != nil {
		return nil, err
	}
	if err := p.inheritSources(c.Sockets); err != nil {
		return nil, errors.Join(err, p.secondary.close())
	}
	p.drops.read(p.sockets, p.received) // the former owner's drops, which it has estimated
	p.openControlGroup()
	p.reportForeign()
	return p, nil
}

func newPort(c *Config, socks *laneSockets) *Port {
	first := socks.lanes[0]
	p := &Port{
		boundPort: boundPort{socks.port, first.family, socks.holder, 0, map[uint64]bool{}, eachBoundSocket}, gro: first.gro, gso: first.gso, config: c.sourceConfig(first.family),
		sources: underlay.NewSources(socks.port, -1), sendNow: sendmmsg, limits: newSendLimits(c.SendBuffer),
	}
	p.maxInstructions, p.selectionReplaceable = maxProgram, selectionReplaceable(kernel.Uname())
	p.paths.now, p.routed.fd = time.Now, -1
	for _, s := range socks.lanes {
		p.lanes = append(p.lanes, newLane(p, s.fd, c.BusyPoll))
	}

	filterErr := firstFilterError(socks.lanes)
	p.filter = p.gro && filterErr == nil
	if filterErr != nil && c.Log != nil {
		c.Log.Warn("attaching the filter against handshake floods failed, during a flood data may be dropped at full socket buffers", "port", p.port, "error", filterErr)
	}
	p.senders.New = func() any { return newSingleSender(p) }
	return p
}

// Lane implements underlay.Port.
func (p *Port) Lane(i int) underlay.Lane { return p.lanes[i] }

// Lanes implements underlay.Port.
func (p *Port) Lanes() int { return len(p.lanes) }

// SecondaryPorts implements underlay.Port.
func (p *Port) SecondaryPorts() underlay.Receiver { return p.secondary }

// LocalPort implements underlay.Port.
func (p *Port) LocalPort() uint16 { return p.port }

// Features implements underlay.Port.
func (p *Port) Features() underlay.Features {
	n, lost := p.paths.withoutGSO()
	return underlay.Features{
		GSO: p.gso && n < maxPathsWithoutGSO, DestinationsWithoutGSO: n, DestinationsLosingTrains: lost, GRO: p.gro, IPv4: true, IPv6: p.family == unix.AF_INET6, Select: p.selects.Load(), Filter: p.filter,
		DontFragment: p.dontFragment.Load(),
	}
}

// SendTo implements underlay.Port. It uses the control group's socket, or lane 0's.
func (p *Port) SendTo(to *underlay.Endpoint, datagram []byte) error {
	return p.withSingleSender(func(l *singleSender) error { return l.sendTo(to, datagram) })
}

// SendRun implements underlay.Port. It uses the source's socket, or the socket of SendTo.
func (p *Port) SendRun(r *underlay.Run) error {
	if r.DontFragment {
		if err := p.openOwn(probeGroup, r.Source); err != nil {
			return err
		}
	}
	return p.withSingleSender(func(l *singleSender) error { return l.send(r) })
}

func (p *Port) withSingleSender(send func(*singleSender) error) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed.Load() {
		return net.ErrClosed
	}
	l := p.senders.Get().(*singleSender)
	defer p.senders.Put(l)
	return send(l)
}

// SetMark implements underlay.Port. After an error some sockets may have the new mark.
func (p *Port) SetMark(mark uint32) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	p.opening.Lock()
	defer p.opening.Unlock()
	if p.closed.Load() || p.kept {
		return net.ErrClosed
	}
	p.config.Mark = mark
	for fd := range p.sockets {
		if err := (&socket{fd: fd}).setMark(mark); err != nil {
			return err
		}
	}
	return p.routed.setMark(mark)
}

// sockets yields the descriptors of all lanes, sources and send groups.
func (p *Port) sockets(yield func(fd int) bool) { p.socketsOf(groups, yield) }

// dataSockets yields the descriptors of sockets without a fragment option of their own.
func (p *Port) dataSockets(yield func(fd int) bool) { p.socketsOf(probeGroup, yield) }

// socketsOf yields the descriptors of all lanes, sources and the first groups.
func (p *Port) socketsOf(groups int, yield func(fd int) bool) {
	for _, l := range p.lanes {
		if !yield(l.fd) {
			return
		}
	}
	for i := 1; i < p.sources.Len(); i++ {
		if !yield(p.sources.Handle(i)) {
			return
		}
	}
	for i := range groups {
		if g := p.groups[i].Load(); g != nil {
			for fd := range g.sockets {
				if !yield(fd) {
					return
				}
			}
		}
	}
}

// Close implements underlay.Port. Further calls wait for the first and return nil.
func (p *Port) Close() (err error) {
	p.closing.Do(func() { err = p.close() })
	return err
}

// close first makes every blocked system call return: sends never block, but receivers do, and
// polls for room in a send buffer (Lane.BeginWait). On an unconnected UDP socket shutdown(2)
// returns ENOTCONN, but wakes both. Kept sockets must not be shut down, because that would affect
// their next owner. A poll then returns when there is room, or at its timeout. Descriptors are
// closed once no goroutine can use them.
func (p *Port) close() error {
	kept := p.markClosed()
	errs := []error{}
	if p.tooBig != nil {
		errs = append(errs, p.tooBig.Close())
	}
	if !kept {
		for fd := range p.sockets {
			_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		}
	}
	p.secondary.wake()
	for _, l := range p.lanes {
		l.receiving.Close()
		l.sending.Close()
	}
	p.secondary.receiving.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readLastDrops(kept)
	errs = append(errs, p.secondary.close(), p.routed.close())
	if p.holder >= 0 {
		errs = append(errs, unix.Close(p.holder))
	}
	for fd := range p.sockets {
		if err := unix.Close(fd); err != nil {
			errs = append(errs, fmt.Errorf("closing a UDP socket: %w", err))
		}
	}
	return errors.Join(errs...)
}

// markClosed makes p refuse new operations: no source is added afterwards. It reports whether the sockets are kept.
func (p *Port) markClosed() (kept bool) {
	p.opening.Lock()
	defer p.opening.Unlock()
	p.closed.Store(true)
	return p.kept
}
