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
)

// Retry intervals for resources that are unavailable. A queue that was closed just now is free again soon. A resource
// that another program uses, or that does not exist, may stay unavailable.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = time.Minute
)

// hardware is the link type of devices that set no rtnl_link_ops, which virtual devices have.
const hardware = "device"

// device is the supervisor's state of the network device.
type device struct {
	index     int // 0: none
	attached  bool
	completes bool // the device completes UDP checksums in copy mode
	addresses []netip.Addr
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
func (k *supervisor) repair(now time.Time) {
	k.device.retryAt = time.Time{}
	if k.config.Device == "" {
		for i := range k.port.lanes {
			k.recordError(i, errNoDevice)
		}
		k.recordDevice(errNoDevice)
		return
	}
	link, err := k.findDevice()
	if err != nil {
		k.releaseGoneDevice(err)
		k.recordDevice(fmt.Errorf("finding %s: %w", k.config.Device, err))
		if _, absent := errors.AsType[netlink.LinkNotFoundError](err); !absent { // the kernel announces a new device
			k.device.scheduleRetry(now)
		}
		return
	}
	if k.configureDevice(link) {
		k.device.scheduleRetry(now)
	} else {
		k.device.resetBackoff()
	}
}

// configureDevice attaches the program and opens the lanes' sockets. It reports whether a retry may help.
func (k *supervisor) configureDevice(link netlink.Link) (again bool) {
	k.device.index = link.Attrs().Index
	k.device.completes = completesChecksums(link.Attrs().Name)
	errAddresses := k.publishAddresses(link)
	err := k.attach(link)
	k.recordDevice(errors.Join(err, errAddresses))
	again = err != nil && !errors.Is(err, errTrains) || errAddresses != nil
	up := link.Attrs().Flags&net.FlagUp != 0
	for i, l := range k.port.lanes {
		if k.config.NoSockets {
			k.recordError(i, errNoSockets)
			continue
		}
		if err != nil && l.laneSocket.Load() == nil {
			k.recordError(i, err) // without the program, the kernel would open a socket without zero-copy
			continue
		}
		again = k.repairLane(i, l, up) || again
	}
	return again
}

// findDevice returns the device, also after it was renamed. It releases a device that is gone.
func (k *supervisor) findDevice() (link netlink.Link, err error) {
	if k.device.index != 0 {
		if link, err = k.resolver.nl.LinkByIndex(k.device.index); err == nil {
			return link, nil
		}
		k.releaseGoneDevice(err)
	}
	return k.resolver.nl.LinkByName(k.config.Device)
}

// releaseGoneDevice releases a device that is gone.
func (k *supervisor) releaseGoneDevice(err error) {
	if k.device.index != 0 {
		_ = k.releaseDevice(fmt.Errorf("%w (%w)", xsk.ErrGone, err)) // a device that is gone needs no cleanup
		return
	}
	for i := range k.port.lanes {
		k.recordError(i, fmt.Errorf("%w (%w)", xsk.ErrGone, err))
	}
}

// defaultDrainTimeout bounds the time for lanes to receive the frames that AF_XDP holds, before their sockets are
// closed.
const defaultDrainTimeout = 20 * time.Millisecond

// drain stops reception through AF_XDP, and waits until the lanes have received the frames that their sockets hold. A
// lane without a receiving goroutine keeps its frames.
func (k *supervisor) drain() {
	var list []*laneSocket
	for i, l := range k.port.lanes {
		c := l.laneSocket.Load()
		if c == nil || !c.works() {
			continue
		}
		c.ending.Store(true)
		if k.config.Program.RemoveSocket(i) == nil {
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
	for _, l := range k.port.lanes {
		l.wake()
	}
	late := time.After(k.drainTimeout)
	for _, c := range list {
		select {
		case <-c.empty:
		case <-late:
			return
		}
	}
}

// releaseDevice closes all sockets and detaches the program.
func (k *supervisor) releaseDevice(reason error) error {
	var errs []error
	for i, l := range k.port.lanes {
		errs = append(errs, k.retire(i, l))
		k.recordError(i, reason)
	}
	if k.device.attached {
		errs = append(errs, k.config.Program.Detach())
	}
	k.device = device{}
	k.recordDevice(reason)
	return errors.Join(errs...)
}

// publishAddresses gives the host's addresses to the program. After an error the program has some of them.
//
// Link-local addresses are left out if the device has devices stacked on top of it, or is part of another device.
// There, the scope of their senders is that of the upper device, which only the stack determines.
func (k *supervisor) publishAddresses(link netlink.Link) error {
	addresses, err := k.resolver.local()
	if err == nil && slices.ContainsFunc(addresses, isScoped) && k.resolver.isStacked(link) {
		addresses = slices.DeleteFunc(addresses, isScoped)
	}
	if err != nil || slices.Equal(addresses, k.device.addresses) {
		return err
	}
	if err := k.config.Program.SetAddresses(addresses); err != nil {
		return fmt.Errorf("setting this host's addresses in the XDP program: %w", err)
	}
	k.device.addresses = addresses
	return nil
}

// errTrains is the reason why generic mode is not used. Retrying does not help.
var errTrains = fmt.Errorf("%w: generic XDP on a virtual device, where one packet may contain several datagrams", errors.ErrUnsupported)

// attach attaches the program to the device.
func (k *supervisor) attach(link netlink.Link) error {
	switch {
	case k.device.attached:
		return nil
	case k.config.Mode == xsk.Generic && !k.config.NoTrains && link.Type() != hardware:
		return errTrains
	}
	if err := k.config.Program.Attach(k.device.index, k.config.Mode == xsk.Generic); err != nil {
		return err // the error names the operation
	}
	k.device.attached = true
	return nil
}

// repairLane opens or replaces a lane's socket if necessary. It reports whether a retry may help.
func (k *supervisor) repairLane(i int, l *lane, up bool) (again bool) {
	if c := l.laneSocket.Load(); c != nil {
		k.probe(c, up)
		k.countFallback(i, c)
		if c.failure.Load() == nil {
			return false // the kernel announces when the device is up
		}
		reason := c.err()
		_ = k.retire(i, l) // the socket is closed even after an error
		k.recordError(i, reason)
	}
	if !up {
		k.recordError(i, xsk.ErrDown)
		return false
	}
	err := k.openSocket(i, l)
	k.recordError(i, err)
	// The kernel announces new queues (ethtool's netlink family).
	return err != nil && !errors.Is(err, xsk.ErrNoQueue)
}

// probe updates a lane socket's state.
func (k *supervisor) probe(c *laneSocket, up bool) {
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
func (k *supervisor) openSocket(i int, l *lane) error {
	config := k.config.socket(k.device.index, i)
	config.BindTimeout = -1 // the supervisor retries
	// Checksum offload must be requested before it is known whether a socket of mode Auto copies. Afterwards, offloads
	// decides.
	copies := config.Mode == xsk.Copy || config.Mode == xsk.Generic
	config.TxChecksum = !k.config.NoChecksumOffload && (k.device.completes || !copies)
	socket, err := xsk.Open(config)
	if err != nil {
		return err
	}
	if err := k.config.Program.SetSocket(i, socket.FD()); err != nil {
		return errors.Join(err, socket.Close())
	}
	l.setLaneSocket(newLaneSocket(socket, &k.device))
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
func (k *supervisor) retire(i int, l *lane) error {
	c := l.laneSocket.Load()
	if c == nil {
		return nil
	}
	errRemove := k.config.Program.RemoveSocket(i)
	r := &k.report.lanes[i]
	k.mu.Lock()
	r.closing = c
	k.mu.Unlock()
	l.setLaneSocket(nil)
	stats, lost, err := c.retire()
	k.mu.Lock()
	defer k.mu.Unlock()
	r.closedStats, r.closing = addStats(r.closedStats, stats), nil
	r.lost += uint64(lost)
	r.down = false
	return errors.Join(errRemove, err)
}

// countFallback counts a lane socket that stopped working.
func (k *supervisor) countFallback(i int, c *laneSocket) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := &k.report.lanes[i]
	if !c.works() && !r.down {
		r.fallbacks++
	}
	r.down = !c.works()
}

// recordError sets the reason why a lane has no socket.
func (k *supervisor) recordError(i int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.report.lanes[i].err = err
}

// recordDevice sets the state of the device in the report.
func (k *supervisor) recordDevice(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.report.attached, k.report.listening, k.report.err = k.device.attached, k.watcher != nil, err
}

// outcome is the state of a device that Config.Changed reports. It is comparable.
type outcome struct {
	device  string
	program Program // set with NoSockets; only its owner knows its effect
	ready   int
	why     string
}

// transientPeriod is the retry interval from which a failure is reported.
const transientPeriod = time.Second

// publishChange calls Config.Changed if the outcome has changed.
func (k *supervisor) publishChange() {
	if k.config.Changed == nil {
		return
	}
	now := outcome{device: k.config.Device}
	if now.device == "" {
		k.lastOutcome = now
		return
	}
	s := k.status()
	why := s.firstError()
	if why != nil {
		now.why = why.Error()
	}
	now.ready = s.Ready()
	if k.config.NoSockets {
		now.program = k.config.Program
	}
	if now == k.lastOutcome || why != nil && !k.device.retryAt.IsZero() && k.device.retryIn < transientPeriod {
		return
	}
	k.lastOutcome = now
	k.config.Changed(now.ready, why)
}

// status returns the state of the Port.
func (k *supervisor) status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := Status{Attached: k.report.attached, Err: k.report.err, Targets: k.port.table.reasons()}
	for i, l := range k.port.lanes {
		s.Lanes = append(s.Lanes, l.status(&k.report.lanes[i]))
	}
	return s
}

// status returns the lane's counters together with its report.
func (l *lane) status(r *laneReport) LaneStatus {
	s := LaneStatus{
		Err: r.err, Fallbacks: r.fallbacks, Socket: r.closedStats,
		Received: l.rx.received.load(), Malformed: l.rx.malformed.load(),
		Sent: l.tx.sent.load(), Slow: l.tx.viaUDP.load(), Long: l.tx.tooLong.load(), Lost: l.tx.lost.load() + r.lost,
	}
	c := l.laneSocket.Load()
	switch {
	case c != nil:
		s.Err, s.Features, s.Frames = c.err(), c.socket.Features(), c.socket.Frames()
	case r.closing != nil:
		c = r.closing
	default:
		return s
	}
	now, _ := c.socket.Stats() // values that the kernel does not report stay zero
	s.Socket = addStats(s.Socket, now)
	return s
}
