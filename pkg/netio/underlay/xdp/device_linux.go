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

// The intervals between attempts to get what could not be had: a queue that was closed just now is free again soon, and what is
// used by somebody else, or is not there, may stay so.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = time.Minute
)

// hardware is the type of links that no driver of virtual devices made (rtnl_link_ops).
const hardware = "device"

// device is the network device as far as the keeper has it in hand.
type device struct {
	index     int // 0: there is none
	attached  bool
	completes bool // the UDP checksums of frames that are copied
	addresses []netip.Addr
	retryAt   time.Time // zero: nothing is missing that a retry would bring
	retryIn   time.Duration
}

// report is what status tells.
type report struct {
	attached  bool
	listening bool // to changes of the network
	err       error
	lanes     []laneReport
}

type laneReport struct {
	err       error // why there is no circuit
	fallbacks uint64
	lost      uint64
	down      bool        // the circuit's device was down when last seen
	before    xsk.Stats   // of the sockets that are closed
	leaving   *laneSocket // whose socket is being closed: those of it are not in before yet
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
		c := l.circuit.Load()
		return c != nil && !c.works()
	})
}

// repair makes the most of the device as it is now.
func (k *supervisor) repair(now time.Time) {
	k.device.retryAt = time.Time{}
	if k.config.Device == "" {
		for i := range k.port.lanes {
			k.recordError(i, errNoWay)
		}
		k.note(errNoWay)
		return
	}
	link, err := k.find()
	if err != nil {
		k.releaseGoneDevice(err)
		k.note(fmt.Errorf("finding %s: %w", k.config.Device, err))
		if _, absent := errors.AsType[netlink.LinkNotFoundError](err); !absent { // what is absent is announced when it comes
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

// configureDevice gives the device its program and the lanes their sockets, and reports whether something is missing that may be had later.
func (k *supervisor) configureDevice(link netlink.Link) (again bool) {
	k.device.index = link.Attrs().Index
	k.device.completes = completesChecksums(link.Attrs().Name)
	errAddresses := k.publishAddresses(link)
	err := k.attach(link)
	k.note(errors.Join(err, errAddresses))
	again = err != nil && !errors.Is(err, errTrains) || errAddresses != nil
	up := link.Attrs().Flags&net.FlagUp != 0
	for i, l := range k.port.lanes {
		if k.config.NoSockets {
			k.recordError(i, errNoSockets)
			continue
		}
		if err != nil && l.circuit.Load() == nil {
			k.recordError(i, err) // a socket would come into being without zero-copy
			continue
		}
		again = k.repairLane(i, l, up) || again
	}
	return again
}

// find returns the device, under whatever name it goes by now, and gives up one that is gone.
func (k *supervisor) find() (link netlink.Link, err error) {
	if k.device.index != 0 {
		if link, err = k.resolver.nl.LinkByIndex(k.device.index); err == nil {
			return link, nil
		}
		k.releaseGoneDevice(err)
	}
	return k.resolver.nl.LinkByName(k.config.Device)
}

// releaseGoneDevice gives up the device because it is gone.
func (k *supervisor) releaseGoneDevice(err error) {
	if k.device.index != 0 {
		_ = k.releaseDevice(fmt.Errorf("%w (%w)", xsk.ErrGone, err)) // what is gone leaves nothing to undo
		return
	}
	for i := range k.port.lanes {
		k.recordError(i, fmt.Errorf("%w (%w)", xsk.ErrGone, err))
	}
}

// drainTime bounds how long lanes are waited for to take what AF_XDP has received before their sockets are closed.
const drainTime = 20 * time.Millisecond

// drain stops what arrives by AF_XDP, and has the lanes take what has arrived. A lane that nobody receives from keeps it.
func (k *supervisor) drain() {
	var list []*laneSocket
	for i, l := range k.port.lanes {
		c := l.circuit.Load()
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
	rest() // a device that is at it hands over what it has for the sockets
	for _, c := range list {
		c.final.Store(true)
	}
	for _, l := range k.port.lanes {
		l.ring()
	}
	late := time.After(k.patience)
	for _, c := range list {
		select {
		case <-c.empty:
		case <-late:
			return
		}
	}
}

// releaseDevice gives all of the device back.
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
	k.note(reason)
	return errors.Join(errs...)
}

// publishAddresses tells the program which addresses are the host's. After an error it has some of them.
//
// Link-local ones are left out when others are stacked upon the device, or it is part of another: the scope of who sends to them
// is that of the device on top, which only the stack finds out.
func (k *supervisor) publishAddresses(link netlink.Link) error {
	addresses, err := k.resolver.local()
	if err == nil && slices.ContainsFunc(addresses, isScoped) && k.resolver.isStacked(link) {
		addresses = slices.DeleteFunc(addresses, isScoped)
	}
	if err != nil || slices.Equal(addresses, k.device.addresses) {
		return err
	}
	if err := k.config.Program.SetAddresses(addresses); err != nil {
		return fmt.Errorf("telling the XDP program this host's addresses: %w", err)
	}
	k.device.addresses = addresses
	return nil
}

// errTrains says why there is no generic mode. It never passes by itself.
var errTrains = fmt.Errorf("%w: generic mode on a virtual device, where several datagrams may come as one packet", errors.ErrUnsupported)

// attach puts the program in front of the device.
func (k *supervisor) attach(link netlink.Link) error {
	switch {
	case k.device.attached:
		return nil
	case k.config.Mode == xsk.Generic && !k.config.NoTrains && link.Type() != hardware:
		return errTrains
	}
	if err := k.config.Program.Attach(k.device.index, k.config.Mode == xsk.Generic); err != nil {
		return err // it says what it is about
	}
	k.device.attached = true
	return nil
}

// repairLane reports whether something is missing that may be had later.
func (k *supervisor) repairLane(i int, l *lane, up bool) (again bool) {
	if c := l.circuit.Load(); c != nil {
		k.probe(c, up)
		k.count(i, c)
		if c.failure.Load() == nil {
			return false // what is down is announced when it is up
		}
		reason := c.err()
		_ = k.retire(i, l) // the socket is closed whatever it says
		k.recordError(i, reason)
	}
	if !up {
		k.recordError(i, xsk.ErrDown)
		return false
	}
	err := k.open(i, l)
	k.recordError(i, err)
	// A queue that the device does not have is announced when it has.
	return err != nil && !errors.Is(err, xsk.ErrNoQueue)
}

// probe finds out whether a circuit is up.
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

// open gives a lane its socket.
func (k *supervisor) open(i int, l *lane) error {
	config := k.config.socket(k.device.index, i)
	config.BindTimeout = -1 // it is tried again
	// Checksums can be asked for only before it is known whether a socket of mode Auto copies; once it is, offloads has the last word.
	copies := config.Mode == xsk.Copy || config.Mode == xsk.Generic
	config.TxChecksum = !k.config.NoChecksumOffload && (k.device.completes || !copies)
	socket, err := xsk.Open(config)
	if err != nil {
		return err
	}
	if err := k.config.Program.SetSocket(i, socket.FD()); err != nil {
		return errors.Join(err, socket.Close())
	}
	l.set(newLaneSocket(socket, &k.device))
	return nil
}

// completesChecksums reports whether a device's frames leave copy mode with the checksums that were asked for. Only those of a veth are
// known to, whose other end believes that they are right. Drivers of hardware (igb, ixgbe) look for the headers where the
// stack would have said that they are, and xsk_build_skb does not say; for virtio_net (IFF_TX_SKB_NO_LINEAR) Linux 6.8 to 6.17 forgets the
// request. Without hardware the kernel would compute them as we do, so nothing is lost.
func completesChecksums(device string) bool {
	driver, err := hostnet.Driver(device)
	return err == nil && driver == "veth"
}

// retire takes a lane's socket away, if it has one. What arrives goes up the stack from here on.
func (k *supervisor) retire(i int, l *lane) error {
	c := l.circuit.Load()
	if c == nil {
		return nil
	}
	errRemove := k.config.Program.RemoveSocket(i)
	r := &k.report.lanes[i]
	k.mu.Lock()
	r.leaving = c
	k.mu.Unlock()
	l.set(nil)
	stats, lost, err := c.retire()
	k.mu.Lock()
	defer k.mu.Unlock()
	r.before, r.leaving = addStats(r.before, stats), nil
	r.lost += uint64(lost)
	r.down = false
	return errors.Join(errRemove, err)
}

// count notes that a circuit stopped working.
func (k *supervisor) count(i int, c *laneSocket) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := &k.report.lanes[i]
	if !c.works() && !r.down {
		r.fallbacks++
	}
	r.down = !c.works()
}

// recordError says why a lane has no socket.
func (k *supervisor) recordError(i int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.report.lanes[i].err = err
}

// note says how the device is.
func (k *supervisor) note(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.report.attached, k.report.listening, k.report.err = k.device.attached, k.watcher != nil, err
}

// outcome is what Config.Changed is told, of a device. It is comparable.
type outcome struct {
	device  string
	program Program // if it works alone: what it does, only who chose it can tell
	ready   int
	why     string
}

// passing is how long retries must have gone on before what they are for is told.
const passing = time.Second

// publishChange calls Config.Changed if there is something new.
func (k *supervisor) publishChange() {
	if k.config.Changed == nil {
		return
	}
	now := outcome{device: k.config.Device}
	if now.device == "" {
		k.told = now
		return
	}
	s := k.status()
	why := s.trouble()
	if why != nil {
		now.why = why.Error()
	}
	now.ready = s.Ready()
	if k.config.NoSockets {
		now.program = k.config.Program
	}
	if now == k.told || why != nil && !k.device.retryAt.IsZero() && k.device.retryIn < passing {
		return
	}
	k.told = now
	k.config.Changed(now.ready, why)
}

// status puts together what the goroutines know.
func (k *supervisor) status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := Status{Attached: k.report.attached, Err: k.report.err, Targets: k.port.table.reasons()}
	for i, l := range k.port.lanes {
		s.Lanes = append(s.Lanes, l.status(&k.report.lanes[i]))
	}
	return s
}

// status adds what the lane has counted to what is reported of it.
func (l *lane) status(r *laneReport) LaneStatus {
	s := LaneStatus{
		Err: r.err, Fallbacks: r.fallbacks, Socket: r.before,
		Received: l.rx.received.load(), Malformed: l.rx.malformed.load(),
		Sent: l.tx.sent.load(), Slow: l.tx.slow.load(), Long: l.tx.long.load(), Lost: l.tx.lost.load() + r.lost,
	}
	c := l.circuit.Load()
	switch {
	case c != nil:
		s.Err, s.Features, s.Frames = c.err(), c.socket.Features(), c.socket.Frames()
	case r.leaving != nil:
		c = r.leaving
	default:
		return s
	}
	now, _ := c.socket.Stats() // what the kernel does not tell stays zero
	s.Socket = addStats(s.Socket, now)
	return s
}
