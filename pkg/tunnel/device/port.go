// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// applyLinkEvent applies a link event: link up opens the port, link down closes it, as in the in-kernel WireGuard.
func (d *Device) applyLinkEvent(ev tun.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	d.linkUp = ev.Up
	if int64(ev.MTU) != d.mtu.Load() {
		d.setMTU(ev.MTU)
	}
	switch {
	case ev.Up && !d.up:
		if err := d.bringUp(d.listenPort, d.mark.Load()); err != nil {
			d.logPortFailure(err)
		}
	case !ev.Up:
		if d.stopReading() { // before the port closes
			d.engine.SendWaiting()
		}
		if d.up {
			d.down()
			d.holdStaged()
			d.log.Info("interface down, listen port closed and sessions erased")
		}
		return
	}
	d.readTUN() // also without a port: nothing says when there will be one, so packets are dropped and counted
}

// stagedHold is the time for which packets stay staged while the link is down. If it goes down and up at once, lanes may stage packets of the
// new link before the device knows of either.
const stagedHold = time.Second

// holdStaged drops all staged packets after stagedHold, if there is no port then. The caller holds mu.
func (d *Device) holdStaged() {
	if d.expiry != nil {
		d.expiry.Stop()
	}
	d.expiry = time.AfterFunc(stagedHold, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.up {
			d.dropStaged()
		}
	})
}

// setMTU applies a new MTU of the TUN. The caller holds mu.
func (d *Device) setMTU(mtu int) {
	d.mtu.Store(int64(mtu))
	d.engine.SetMTU(mtu)
	if !d.up { // no peer runs
		return
	}
	for _, p := range d.peers {
		p.mu.Lock()
		p.updatePathMTU(d.clock())
		p.armTimer(d.clock())
		p.mu.Unlock()
	}
}

// logPortFailure logs that the interface is up without a port.
func (d *Device) logPortFailure(err error) {
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
func (d *Device) bringUp(listen uint16, mark uint32) error {
	port, err := d.openPort(listen, mark)
	if err == nil {
		err = d.attachPort(port)
	}
	if err != nil {
		_ = d.cfg.ReservePort(d.listenPort)
		return err
	}
	d.up = true
	d.log.Info("interface up", "port", port.LocalPort())
	d.startPeers()
	d.sharePeers()
	return nil
}

// startPeers starts all peers, those that had a session first: with many peers the rest takes long. A peer with traffic does not wait for its
// turn (Peer.isUp). The caller holds mu.
func (d *Device) startPeers() {
	d.starting.Store(true)
	defer d.starting.Store(false)
	d.readTUN()
	for _, key := range d.startFirst {
		if p := d.peers[key]; p != nil {
			p.start()
		}
	}
	d.startFirst = nil
	for _, p := range d.peers {
		p.start()
	}
}

// readTUN lets the lanes read the TUN. Before the port is open they could only drop the packets that wait there: the host sends as soon as the
// interface is up, and during the pause of an upgrade. The caller holds mu: the lanes start before Leave waits for them, or not at all.
func (d *Device) readTUN() {
	if !d.reading {
		d.reading = true
		d.engine.Start()
	}
}

// stopReading ends readTUN, and reports whether it had begun. All that the lanes have read is sent. Other packets wait in the TUN. The caller holds mu.
func (d *Device) stopReading() (stopped bool) {
	if !d.reading {
		return false
	}
	if err := d.engine.Stop(); err != nil {
		d.log.Warn("stopping reads from the TUN device failed, packets are dropped until the listen port is open", "error", err)
		return false
	}
	d.reading = false
	return true
}

func (d *Device) openPort(port uint16, mark uint32) (underlay.Port, error) {
	d.endReservation()
	p, err := d.cfg.OpenPort(PortOptions{
		Port: port, Lanes: d.engine.Lanes(), Mark: mark, Mode: config.UnderlayMode(d.underlayMode.Load()),
		Fragments: d.fragments.Load(), TooBig: d.onTooBig,
	})
	if err != nil {
		return nil, fmt.Errorf("opening listen port %d: %w", port, err)
	}
	return p, nil
}

// endReservation ends that of reserveListen.
func (d *Device) endReservation() { _ = d.cfg.ReservePort(0) }

// attachPort replaces the present port by port. While the device is down, no peer has state of a port. The caller holds mu.
func (d *Device) attachPort(port underlay.Port) error {
	if d.up {
		d.stopReading()
		defer d.readTUN()
		d.closeSources()
	}
	if err := d.engine.Detach(); err != nil {
		d.log.Warn("closing the old listen port failed, traffic uses the new one: the old sockets stay open until this daemon ends", "old_port", d.listenPort, "port", port.LocalPort(), "error", err)
	}
	d.socketDrops.setPort(nil, d.engine.Lanes())
	d.guard.Store(nil)
	if err := d.engine.Attach(port); err != nil {
		return errors.Join(err, port.Close())
	}
	d.listenPort = port.LocalPort()
	d.loops.attach(&d.port, &portRef{port})
	d.socketDrops.setPort(port, d.engine.Lanes())
	d.resetSources()
	d.groups.reset(port)
	d.resetSelection()
	if d.up {
		d.sharePeers()
		d.renewHellos(true)
	}
	return nil
}

// down erases all sessions and closes the port. Peers stop first, so that none sends while the port closes. Staged packets stay. The caller
// holds mu.
func (d *Device) down() {
	for _, p := range d.peers {
		p.stop()
	}
	d.closePort()
}

// closePort closes the port, and leaves the peers as they are. The caller holds mu.
func (d *Device) closePort() {
	d.up = false
	d.endReservation()
	d.closeSources()
	d.port.Store(nil)
	if err := d.engine.Detach(); err != nil {
		d.log.Warn("closing the listen port failed, its sockets stay open until this daemon ends", "port", d.listenPort, "error", err)
	}
	d.guard.Store(nil)
	d.socketDrops.setPort(nil, d.engine.Lanes())
}

// portPeers implements underlay.Peers for a port.
type portPeers struct{ *Device }

// sharePeers lets the port know the peers, once they have their sessions. The caller holds mu.
func (d *Device) sharePeers() {
	if s, ok := d.switcher(); ok {
		s.SetPeers(portPeers{d})
	}
}

// Guard implements underlay.Peers. Handshakes may run meanwhile: each index that is reserved after the pointer is stored reaches the guard
// by itself, and no index reaches it twice.
func (d portPeers) Guard(g underlay.Guard) {
	if g == nil {
		d.guard.Store(nil)
		return
	}
	d.guard.Store(&guardRef{g})
	d.peersMu.RLock()
	defer d.peersMu.RUnlock()
	for _, p := range d.peers {
		p.mu.Lock()
		if p.running {
			for _, b := range append(p.sessions.all(), p.handshake.attempt) {
				if b != nil {
					d.admitIndex(b)
				}
			}
			p.updateGuard()
		}
		p.mu.Unlock()
	}
}

// Endpoints implements underlay.Peers.
func (d portPeers) Endpoints(limit int) (list []config.Endpoint) {
	d.peersMu.RLock()
	defer d.peersMu.RUnlock()
	for _, p := range d.peers {
		if len(list) == limit {
			break
		}
		p.mu.Lock()
		if p.path.guarded.AddrPort.IsValid() {
			list = append(list, p.path.guarded)
		}
		p.mu.Unlock()
	}
	return list
}
