// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Retry intervals for resources that are unavailable. A queue that was closed just now is free again soon. A resource
// that another program uses, or that does not exist, may stay unavailable.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = time.Minute
)

// device is the supervisor's state of the network device.
type device struct {
	index     int // 0: none
	attached  bool
	completes bool // the device completes UDP checksums in copy mode
	addresses []netip.Addr
	sources   int       // the program knows those up to this number
	retryAt   time.Time // zero: no retry is scheduled
	retryIn   time.Duration
}

// deviceReport is the part of Status that the supervisor's goroutine writes.
type deviceReport struct {
	attached  bool
	listening bool // the watcher runs
	err       error
	lanes     []laneReport
}

type laneReport struct {
	err         error // why there is no lane socket
	fallbacks   uint64
	lost        uint64
	stalls      uint64      // sockets whose frames the kernel did not send
	stalled     int         // stalls on this device
	down        bool        // the lane socket's device was down when last checked
	closedStats xsk.Stats   // counters of closed sockets
	closing     *laneSocket // the socket being closed; closedStats does not include it yet
}

// resetBackoff makes the next retry come soon, after a change.
func (d *device) resetBackoff() { d.retryIn = 0 }

// scheduleRetry sets the time of the next retry.
func (d *device) scheduleRetry(now time.Time) {
	d.retryIn = min(max(2*d.retryIn, firstRetry), lastRetry)
	d.retryAt = now.Add(d.retryIn)
}

func (d *device) needsRepair(lanes []*lane, now time.Time) bool {
	if !d.retryAt.IsZero() && !now.Before(d.retryAt) {
		return true
	}
	return slices.ContainsFunc(lanes, func(l *lane) bool {
		c := l.laneSocket.Load()
		return c != nil && !c.works()
	})
}

// repair sets up as much of the device as is possible now.
func (sup *supervisor) repair(now time.Time) {
	sup.device.retryAt = time.Time{}
	if sup.config.Device == "" {
		for i := range sup.port.lanes {
			sup.recordError(i, errNoDevice)
		}
		sup.recordDevice(errNoDevice)
		return
	}
	link, err := sup.findDevice()
	if err != nil {
		sup.releaseGoneDevice(err)
		sup.recordDevice(fmt.Errorf("finding %s: %w", sup.config.Device, err))
		if _, absent := errors.AsType[netlink.LinkNotFoundError](err); !absent { // the kernel announces a new device
			sup.device.scheduleRetry(now)
		}
		return
	}
	if sup.configureDevice(link) {
		sup.device.scheduleRetry(now)
	} else {
		sup.device.resetBackoff()
	}
}

// configureDevice attaches the program and opens the lanes' sockets. It reports whether a retry may help.
func (sup *supervisor) configureDevice(link netlink.Link) (again bool) {
	sup.device.index = link.Attrs().Index
	sup.device.completes = completesChecksums(link.Attrs().Name)
	errAddresses := sup.publishAddresses(link)
	err := sup.attach()
	sup.recordDevice(errors.Join(err, errAddresses))
	again = err != nil || errAddresses != nil
	up := link.Attrs().Flags&net.FlagUp != 0
	for i, l := range sup.port.lanes {
		if err != nil && l.laneSocket.Load() == nil {
			sup.recordError(i, err) // without the program, the kernel would open a socket without zero-copy
			continue
		}
		again = sup.repairLane(i, l, up) || again
	}
	return again
}

// findDevice returns the device, also after it was renamed. It releases a device that is gone.
func (sup *supervisor) findDevice() (link netlink.Link, err error) {
	if sup.device.index != 0 {
		if link, err = sup.resolver.nl.LinkByIndex(sup.device.index); err == nil {
			return link, nil
		}
		sup.releaseGoneDevice(err)
	}
	return sup.resolver.nl.LinkByName(sup.config.Device)
}

// releaseGoneDevice releases a device that is gone.
func (sup *supervisor) releaseGoneDevice(err error) {
	if sup.device.index != 0 {
		_ = sup.releaseDevice(fmt.Errorf("%w (%w)", xsk.ErrGone, err)) // a device that is gone needs no cleanup
		return
	}
	for i := range sup.port.lanes {
		sup.recordError(i, fmt.Errorf("%w (%w)", xsk.ErrGone, err))
	}
}

// defaultDrainTimeout bounds the time for lanes to receive the frames that AF_XDP holds, before their sockets are
// closed.
const defaultDrainTimeout = 20 * time.Millisecond

// drain stops reception through AF_XDP, and waits until the lanes have received the frames that their sockets hold. A
// lane without a receiving goroutine keeps its frames.
func (sup *supervisor) drain() {
	var list []*laneSocket
	for i, l := range sup.port.lanes {
		c := l.laneSocket.Load()
		if c == nil || !c.works() {
			continue
		}
		c.ending.Store(true)
		if sup.config.Program.RemoveSocket(i) == nil {
			list = append(list, c)
		}
	}
	if len(list) == 0 {
		return
	}
	pauseTx() // a device in the middle of a batch still passes frames to the sockets
	for _, c := range list {
		c.lastFrame.Store(true)
	}
	for _, l := range sup.port.lanes {
		l.wake()
	}
	late := time.After(sup.drainTimeout)
	for _, c := range list {
		select {
		case <-c.empty:
		case <-late:
			return
		}
	}
}

// releaseDevice closes all sockets and detaches the program.
func (sup *supervisor) releaseDevice(reason error) error {
	var errs []error
	for i, l := range sup.port.lanes {
		errs = append(errs, sup.retire(i, l))
		sup.recordError(i, reason)
	}
	if sup.device.attached {
		errs = append(errs, sup.config.Program.Detach())
	}
	sup.device = device{}
	sup.forgiveStalls()
	sup.recordDevice(reason)
	return errors.Join(errs...)
}

// publishAddresses gives the host's addresses to the program. After an error the program has some of them.
//
// Link-local addresses are left out if the device has devices stacked on top of it, or is part of
// another device. There, the scope of their senders is the upper device's, which only the stack
// determines.
func (sup *supervisor) publishAddresses(link netlink.Link) error {
	links, all, err := hostnet.LinkAddresses()
	if err != nil {
		return err
	}
	stacked := isStacked(link, links)
	var addresses []netip.Addr
	for _, list := range all {
		for _, p := range list {
			if a := p.Addr().Unmap(); !stacked || !isScoped(a) {
				addresses = append(addresses, a)
			}
		}
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	if slices.Equal(addresses, sup.device.addresses) {
		return nil
	}
	if err := sup.config.Program.SetAddresses(addresses); err != nil {
		return fmt.Errorf("setting this host's addresses in the XDP program: %w", err)
	}
	sup.device.addresses = addresses
	return nil
}

// publishSources gives the ports of new sources to the program.
func (sup *supervisor) publishSources(now time.Time) {
	for d := &sup.device; d.index != 0 && sup.port.Source(d.sources+1) != 0; d.sources++ {
		if err := sup.config.Program.AddSourcePort(sup.port.Source(d.sources + 1)); err != nil {
			sup.recordDevice(err)
			d.scheduleRetry(now)
			return
		}
	}
}

// attach attaches the program to the device.
func (sup *supervisor) attach() error {
	if sup.device.attached {
		return nil
	}
	if err := sup.config.Program.Attach(sup.device.index); err != nil {
		return err // the error names the operation
	}
	sup.device.attached = true
	return nil
}

// repairLane opens or replaces a lane's socket if necessary. It reports whether a retry may help.
func (sup *supervisor) repairLane(i int, l *lane, up bool) (again bool) {
	if c := l.laneSocket.Load(); c != nil {
		sup.probe(c, up)
		sup.countFallback(i, c)
		if c.failure.Load() == nil {
			return false // the kernel announces when the device is up
		}
		reason := c.err()
		_ = sup.retire(i, l) // the socket is closed even after an error
		sup.recordError(i, reason)
	}
	if !up {
		sup.recordError(i, xsk.ErrDown)
		return false
	}
	if sup.refuses(i) {
		sup.recordError(i, errRefusing)
		return false
	}
	err := sup.openSocket(i, l)
	sup.recordError(i, err)
	// The kernel announces new queues (ethtool's netlink family).
	return err != nil && !errors.Is(err, xsk.ErrNoQueue)
}

// probe updates a lane socket's state.
func (sup *supervisor) probe(c *laneSocket, up bool) {
	if !up {
		c.recordError(xsk.ErrDown)
		return
	}
	err := c.socket.Check()
	if err == nil {
		c.down.Store(false)
	}
	c.recordError(err)
}

// openSocket opens a lane's AF_XDP socket.
func (sup *supervisor) openSocket(i int, l *lane) error {
	config := xsk.Config{Interface: sup.device.index, Queue: i, Mode: sup.config.Mode, FrameSize: sup.config.FrameSize}
	// Checksum offload must be requested before it is known whether a socket of mode Auto copies. Afterwards, offloads
	// decides.
	config.TxChecksum = !sup.config.NoChecksumOffload && (sup.device.completes || config.Mode != xsk.Copy)
	socket, err := xsk.Open(config)
	if err != nil {
		return err
	}
	if err := sup.config.Program.SetSocket(i, socket.FD()); err != nil {
		return errors.Join(err, socket.Close())
	}
	c := newLaneSocket(socket, &sup.device)
	if sup.config.progress != nil {
		c.progress = sup.config.progress
	}
	l.setLaneSocket(c)
	return nil
}

// completesChecksums reports whether a device completes requested checksums of frames in copy mode. Only veth is known
// to: its other end assumes that they are correct. Hardware drivers (igb, ixgbe) look for the headers at the offsets
// that the stack would have set, and xsk_build_skb does not set them. For virtio_net (IFF_TX_SKB_NO_LINEAR), Linux 6.8
// to 6.17 drops the request. Without hardware offload the kernel would compute the checksums in software as we do, so
// nothing is lost.
func completesChecksums(device string) bool {
	driver, err := hostnet.Driver(device)
	return err == nil && driver == "veth"
}

// retire removes a lane's socket, if it has one. From then on its messages go through the stack.
func (sup *supervisor) retire(i int, l *lane) error {
	c := l.laneSocket.Load()
	if c == nil {
		return nil
	}
	errRemove := sup.config.Program.RemoveSocket(i)
	r := &sup.report.lanes[i]
	sup.mu.Lock()
	r.closing = c
	sup.mu.Unlock()
	l.setLaneSocket(nil)
	stats, lost, err := c.retire()
	sup.mu.Lock()
	defer sup.mu.Unlock()
	r.closedStats, r.closing = addStats(r.closedStats, stats), nil
	r.lost += uint64(lost)
	r.down = false
	return errors.Join(errRemove, err)
}

// countFallback counts a lane socket that stopped working.
func (sup *supervisor) countFallback(i int, c *laneSocket) {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	r := &sup.report.lanes[i]
	if !c.works() && !r.down {
		r.fallbacks++
	}
	r.down = !c.works()
}

// recordError sets the reason why a lane has no socket.
func (sup *supervisor) recordError(i int, err error) {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	sup.report.lanes[i].err = err
}

// recordDevice sets the state of the device in the report.
func (sup *supervisor) recordDevice(err error) {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	sup.report.attached, sup.report.listening, sup.report.err = sup.device.attached, sup.watcher != nil, err
}

// outcome is the state of a device that Config.Changed reports. It is comparable.
type outcome struct {
	device string
	ready  int
	why    string
}

// transientPeriod is the retry interval from which a failure is reported.
const transientPeriod = time.Second

// publishChange calls Config.Changed if the outcome has changed.
func (sup *supervisor) publishChange() {
	if sup.config.Changed == nil {
		return
	}
	now := outcome{device: sup.config.Device}
	if now.device == "" {
		sup.lastOutcome = now
		return
	}
	s := sup.status()
	why := s.firstError()
	if why != nil {
		now.why = why.Error()
	}
	now.ready = s.Ready()
	if now == sup.lastOutcome || why != nil && !sup.device.retryAt.IsZero() && sup.device.retryIn < transientPeriod {
		return
	}
	sup.lastOutcome = now
	sup.config.Changed(now.ready, why)
}

// status returns the state of the Port.
func (sup *supervisor) status() Status {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	s := Status{Attached: sup.report.attached, Err: sup.report.err}
	for i, l := range sup.port.lanes {
		s.Lanes = append(s.Lanes, l.status(&sup.report.lanes[i]))
	}
	return s
}

// status returns the lane's counters together with its report.
func (l *lane) status(r *laneReport) LaneStatus {
	s := LaneStatus{Err: r.err, Socket: r.closedStats, XDPLane: config.XDPLane{
		Fallbacks: r.fallbacks, Stalls: r.stalls, Received: l.rx.received.load(), Malformed: l.rx.malformed.load(),
		Sent: l.tx.sent.load(), Slow: l.tx.viaUDP.load(),
	}}
	c := l.laneSocket.Load()
	if c != nil {
		f := c.socket.Frames()
		s.Err, s.Features = c.err(), c.socket.Features()
		s.RXHeld, s.TXHeld, s.TXKernel = f.RxUser, f.TxUser, f.TxKernel-f.TxDone
	} else {
		c = r.closing
	}
	if c != nil {
		now, _ := c.socket.Stats() // values that the kernel does not report stay zero
		s.Socket = addStats(s.Socket, now)
	}
	s.Unsent = r.lost + s.Socket.Rejected + s.Socket.TxRefused + s.Socket.TxInvalid
	s.Lost = l.tx.failed.load() + s.Unsent
	s.Rejected, s.FrameOwnershipErrors = s.Socket.Rejected+s.Socket.RxInvalid+s.Socket.TxInvalid, s.Socket.FrameOwnershipErrors
	return s
}
