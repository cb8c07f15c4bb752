// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/sockets"
)

// portState is the port, and the sockets of the device on it beyond one per lane.
type portState struct {
	dev       *Device
	port      atomic.Pointer[portRef] // nil while down
	sources   sockets.Sources
	groups    sockets.Groups
	selection sockets.Selection
	guard     atomic.Pointer[guardRef] // nil while there is none
}

// portRef boxes the interface for atomic.Pointer.
type portRef struct{ underlay.Port }

// logFailure logs that the interface is up without a port.
func (o *portState) logFailure(err error) {
	d := o.dev
	d.log.Error("opening the listen port failed, no traffic until the port is set again or the interface goes down and up",
		"port", d.listenPort, "hint", portHint(err), "error", err)
}

// portHint returns advice for an error in opening the port.
func portHint(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "free this port and set it again, or set another listen port"
	case errors.Is(err, syscall.EMFILE):
		return "raise the limit of open files (ulimit -n)"
	}
	return "see the error; set the listen port again to retry"
}

// bringUp opens the port and starts all peers. After an error the present listen port stays reserved, unless another program has it. The caller
// holds mu.
func (o *portState) bringUp(listen uint16, mark uint32) error {
	d := o.dev
	port, err := o.open(listen, mark)
	if err == nil {
		err = o.attach(port)
	}
	if err != nil {
		_ = d.cfg.ReservePort(d.listenPort)
		return err
	}
	d.up = true
	d.log.Info("interface up", "port", port.LocalPort())
	d.peers.start()
	o.share()
	return nil
}

func (o *portState) open(port uint16, mark uint32) (underlay.Port, error) {
	d := o.dev
	o.endReservation()
	p, err := d.cfg.OpenPort(PortOptions{
		Port: port, Lanes: d.engine.Lanes(), Mark: mark, Mode: config.UnderlayMode(d.underlayMode.Load()),
		Fragments: d.fragments.Load(), TooBig: d.icmp.accept,
	})
	if err != nil {
		return nil, fmt.Errorf("opening listen port %d: %w", port, err)
	}
	return p, nil
}

// endReservation ends the reservation of reserveListen.
func (o *portState) endReservation() { _ = o.dev.cfg.ReservePort(0) }

// attach replaces the present port by port. While the device is down, no peer has state of a port. The caller holds mu.
func (o *portState) attach(port underlay.Port) error {
	d := o.dev
	if d.up {
		d.stopReading()
		defer d.readTUN()
		o.closeSources()
	}
	if err := d.engine.Detach(); err != nil {
		d.log.Warn("closing the old listen port failed, traffic uses the new one: the old sockets stay open until this daemon ends", "old_port", d.listenPort, "port", port.LocalPort(), "error", err)
	}
	d.counts.socketDrops.SetPort(nil, d.engine.Lanes())
	o.guard.Store(nil)
	if err := d.engine.Attach(port); err != nil {
		return errors.Join(err, port.Close())
	}
	d.listenPort = port.LocalPort()
	d.loops.attach(&o.port, &portRef{port})
	d.counts.socketDrops.SetPort(port, d.engine.Lanes())
	o.resetSources()
	o.groups.Reset(port)
	o.resetSelection()
	if d.up {
		o.share()
		d.peers.renewHellos(true)
	}
	return nil
}

// close closes the port, and leaves the peers as they are. The caller holds mu.
func (o *portState) close() {
	d := o.dev
	d.up = false
	o.endReservation()
	o.closeSources()
	o.port.Store(nil)
	if err := d.engine.Detach(); err != nil {
		d.log.Warn("closing the listen port failed, its sockets stay open until this daemon ends", "port", d.listenPort, "error", err)
	}
	o.guard.Store(nil)
	d.counts.socketDrops.SetPort(nil, d.engine.Lanes())
}

// portPeers implements underlay.Peers for a port.
type portPeers struct{ *Device }

// share lets the port know the peers, once they have their sessions. The caller holds mu.
func (o *portState) share() {
	d := o.dev
	if s, ok := o.switcher(); ok {
		s.SetPeers(portPeers{d})
	}
}

// Guard implements underlay.Peers. Handshakes may run meanwhile: each index that is reserved after the pointer is stored reaches the guard
// by itself, and no index reaches it twice.
func (d portPeers) Guard(g underlay.Guard) {
	if g == nil {
		d.outer.guard.Store(nil)
		return
	}
	d.outer.guard.Store(&guardRef{g})
	d.peers.mu.RLock()
	defer d.peers.mu.RUnlock()
	for p := range d.peers.locked() {
		if p.running {
			for _, b := range append(p.sessions.all(), p.handshake.attempt) {
				if b != nil {
					d.outer.admitIndex(b)
				}
			}
			p.location.updateGuard()
		}
	}
}

// Endpoints implements underlay.Peers.
func (d portPeers) Endpoints(limit int) (list []config.Endpoint) {
	d.peers.mu.RLock()
	defer d.peers.mu.RUnlock()
	for _, p := range d.peers.list {
		if len(list) == limit {
			break
		}
		p.mu.Lock()
		if p.location.guarded.AddrPort.IsValid() {
			list = append(list, p.location.guarded)
		}
		p.mu.Unlock()
	}
	return list
}

// setMode sets the underlay mode. nil leaves it unchanged; the present mode makes the port choose again. The caller holds mu.
func (o *portState) setMode(mode *config.UnderlayMode) {
	if mode == nil {
		return
	}
	o.dev.underlayMode.Store(uint32(*mode))
	if s, ok := o.switcher(); ok {
		s.SetMode(*mode)
	}
}

// switcher returns the present port if it can switch between modes.
func (o *portState) switcher() (underlay.Switcher, bool) {
	s, ok := o.present().(underlay.Switcher)
	return s, ok
}

// present returns the present port, nil for none.
func (o *portState) present() underlay.Port {
	if ref := o.port.Load(); ref != nil {
		return ref.Port
	}
	return nil
}

// report reports the path of data messages: UDP sockets or AF_XDP.
func (o *portState) report() config.UnderlayReport {
	if s, ok := o.switcher(); ok {
		return s.Report()
	}
	r := config.UnderlayReport{Mode: config.UnderlayMode(o.dev.underlayMode.Load()), Path: config.UnderlayUDP}
	if o.port.Load() == nil {
		r.Reason = sockets.ErrDown.Error()
	}
	return r
}

// routeTo looks up the route of messages to an endpoint as the device sends them now: the zero Route without one.
func (o *portState) routeTo(to *underlay.Endpoint) Route {
	return o.dev.cfg.Route(to, o.dev.mark.Load())
}

// localPort returns the listen port, 0 while there is none. It needs no lock.
func (o *portState) localPort() uint16 {
	if port := o.port.Load(); port != nil {
		return port.LocalPort()
	}
	return 0
}

// resetSelection resets the lane selection to the present port and spread configuration. The caller holds Device.mu.
func (o *portState) resetSelection() {
	spreading := o.dev.spreading.Load()
	ports := spreading.ports
	if spreading.mode == config.SpreadOff {
		ports = spread.Ports{}
	}
	o.selection.Reset(o.present(), ports)
}

// resetSources discards the sources and uses the sources of the present port. The caller holds mu.
func (o *portState) resetSources() {
	o.sources.Reset(o.present())
}

// closeSources stops spread on all lanes, and lane selection on the port, before the port is closed. The caller holds mu.
func (o *portState) closeSources() {
	d := o.dev
	o.sources.Reset(nil)
	o.groups.Reset(nil)
	o.selection.Reset(nil, spread.Ports{})
	if d.handingOver {
		return // the lanes send nothing more
	}
	for p := range d.peers.locked() {
		p.engine.Spread.Store(nil)
		p.probing.updateSources()
		p.spread.resetGroup()
		p.spread.sourcesOpened = 0
	}
}

// spreadPorts returns the range of source ports without the listen port: the larger of the two parts around it.
func (o *portState) spreadPorts() spread.Ports {
	ports := o.dev.spreading.Load().ports
	ref := o.port.Load()
	if ref == nil || !ports.Contains(ref.LocalPort()) {
		return ports
	}
	listen := ref.LocalPort()
	below, above := spread.Ports{First: ports.First, Last: listen - 1}, spread.Ports{First: listen + 1, Last: ports.Last}
	if below.Len() > above.Len() {
		return below
	}
	return above
}

// configure changes the listen port and the firewall mark; nil leaves a setting unchanged.
func (o *portState) configure(listen *uint16, mark *uint32) error {
	d := o.dev
	port := o.port.Load()
	newMark := d.mark.Load()
	if mark != nil {
		newMark = *mark
	}
	switch {
	case listen != nil && port != nil && *listen != d.listenPort:
		next, err := o.open(*listen, newMark)
		if err != nil {
			return err
		}
		if err := o.attach(next); err != nil {
			return err
		}
	case mark != nil && port != nil && *mark != d.mark.Load():
		if err := port.SetMark(*mark); err != nil {
			return fmt.Errorf("setting firewall mark: %w", err)
		}
	}
	if err := o.configureListen(listen, newMark); err != nil {
		return err
	}
	if d.mark.Swap(newMark) != newMark {
		for _, p := range d.peers.list {
			p.location.clearSource() // another mark may mean another route
			p.requestRoute()
		}
	}
	return nil
}

// configureListen sets the listen port of a device without an open port. Its link is down, or the
// port was busy when the link came up. In the latter case it opens the port.
func (o *portState) configureListen(listen *uint16, mark uint32) error {
	d := o.dev
	switch {
	case d.up:
		return nil
	case listen == nil && d.linkUp:
		if err := o.bringUp(d.listenPort, mark); err != nil {
			o.logFailure(err)
		}
		return nil
	case listen == nil:
		return nil
	case !d.linkUp:
		return o.reserveListen(*listen)
	}
	return o.bringUp(*listen, mark)
}

// reserveListen sets the listen port while the link is down. A port in use is refused: nobody would see the error when the link comes up. Before
// Start the process that hands the device over may still have the port.
func (o *portState) reserveListen(port uint16) error {
	d := o.dev
	if d.started {
		if err := d.cfg.ReservePort(port); err != nil {
			return fmt.Errorf("setting listen port %d: %w", port, err)
		}
	}
	d.listenPort = port
	return nil
}

// admitIndex adds the index of b to the guard, unless the guard knows it. refuseIndex removes it. The caller holds the peer's mu.
func (o *portState) admitIndex(b *keyBinding) {
	g := o.guard.Load()
	if g != nil && g != b.guard {
		g.AddIndex(b.index)
	}
	b.guard = g
}

func (o *portState) refuseIndex(b *keyBinding) {
	if b.guard != nil && b.guard == o.guard.Load() {
		b.guard.RemoveIndex(b.index)
	}
}

// guardRef boxes the interface for atomic.Pointer. Its address tells one guard from the next.
type guardRef struct{ underlay.Guard }

// configureFragments permits or forbids fragments of outer packets; nil leaves the setting unchanged. The caller holds mu.
func (o *portState) configureFragments(permitted *config.OnOff) {
	d := o.dev
	if permitted == nil || d.fragments.Swap(bool(*permitted)) == bool(*permitted) {
		return
	}
	port := o.port.Load()
	if port == nil {
		return
	}
	if err := port.SetFragments(bool(*permitted)); err != nil {
		d.log.Warn("changing the Don't Fragment option of some sockets failed, they handle large packets as before until the interface goes down and up",
			"outer_fragments", permitted, "error", err)
	}
	for p := range d.peers.locked() {
		p.mtu.apply()
	}
}

// sendsFragments reports whether outer packets may be fragmented: then only probes limit their size.
func (o *portState) sendsFragments() bool {
	port := o.port.Load()
	return port == nil || !port.Features().DontFragment
}

// send sends one slow-path message by means of f. The error is from the system call.
func (o *portState) send(to *underlay.Endpoint, f func(underlay.Port) error) (drop.Reason, error) {
	port := o.port.Load()
	if port == nil {
		return drop.TXDown, nil
	}
	err := f(port)
	switch {
	case err == nil:
		return drop.None, nil
	case errors.Is(err, underlay.ErrSendBufferFull):
		return drop.TXSendBuffer, err
	case errors.Is(err, underlay.ErrLoop):
		return drop.TXLoop, err
	}
	o.dev.log.Debug("sending a handshake message or cookie reply failed, the initiator of the handshake retries in 5 seconds", "endpoint", to.Dst, "error", err)
	return drop.TXSendError, err
}

// trainLimiter returns the port if it sends trains in one piece, nil otherwise.
func (o *portState) trainLimiter() underlay.TrainLimiter {
	port := o.present()
	if port == nil || !port.Features().GSO {
		return nil
	}
	limiter, _ := port.(underlay.TrainLimiter)
	return limiter
}
