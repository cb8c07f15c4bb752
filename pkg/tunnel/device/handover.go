// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Snapshot returns the state of a running device for Resume of another one. That may take long, and this device goes on meanwhile: Changes
// returns the peers that have changed since, and so does Leave at the end, for Update. Until Leave or DiscardSnapshot, Configure fails. It is an
// error if the device has ended before, or was not started.
func (d *Device) Snapshot() (*State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || !d.started {
		return nil, d.errCannotLeave()
	}
	d.changed.begin()
	return d.saveState(slices.Collect(maps.Values(d.peers))), nil
}

// ChangedPeers returns the number of peers that Changes would return.
func (d *Device) ChangedPeers() int { return d.changed.len() }

// Changes returns the peers that have changed since Snapshot or the last Changes. The device goes on.
func (d *Device) Changes() *State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.saveState(d.changed.take())
}

// DiscardSnapshot ends what Snapshot has begun, when there will be no Leave.
func (d *Device) DiscardSnapshot() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changed.end()
}

// errCannotLeave is the error for a device that cannot be handed over. The caller holds mu.
func (d *Device) errCannotLeave() error {
	return fmt.Errorf("handing over %s: the interface was deleted, or its daemon is ending: %w", d.cfg.TUN.Name(), syscall.ENODEV)
}

// Leave stops the device, and returns the state that another device needs to continue: all of it, or after Snapshot what has changed since it was
// last returned. It first stops reading the TUN, then the port, so that all packets that were read are sent. Later packets wait in the kernel if
// another process keeps the descriptors (tun.HandoverDevice, udp.Port.Keep). The device sends nothing after Leave has returned. Its session keys
// last until Retire: erasing those of all peers takes long.
//
// Before all that, Leave calls keep, unless it is nil. The device neither opens nor closes a port from then on, until it is stopped, so keep can
// duplicate the port's sockets. The device goes on if keep returns an error. It is also an error if the device has ended before, or was not started.
func (d *Device) Leave(keep func() error) (*State, error) {
	if err := d.beginLeave(keep); err != nil {
		return nil, err
	}
	if err := d.cfg.TUN.StopReading(); err != nil {
		d.log.Warn("stopping reads from the TUN device failed, packets may be lost during the handover", "error", err)
	} else {
		d.engine.Wait()
	}
	d.drain()
	if err := d.cfg.TUN.Close(); err != nil {
		d.log.Warn("closing the TUN device for the handover failed, its descriptors close with this process: the new daemon has the same queues", "error", err)
	}
	<-d.done
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changed.tracking.Load() {
		return d.saveState(d.changed.take()), nil
	}
	return d.saveState(slices.Collect(maps.Values(d.peers))), nil
}

// beginLeave makes the device ignore all link events from now on, unless it fails.
func (d *Device) beginLeave(keep func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || !d.started {
		return d.errCannotLeave()
	}
	if keep != nil {
		if err := keep(); err != nil {
			return err
		}
	}
	d.handingOver, d.closed = true, true
	return nil
}

// drain closes the port for Leave, once the lanes have handled all that they have read.
func (d *Device) drain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closeSources()
	if err := d.engine.Detach(); err != nil {
		d.log.Warn("closing the listen port for the handover failed, its descriptors close with this process: the new daemon has the same sockets", "error", err)
	}
	d.closePort()
}

// CompleteState returns the state of all peers. After Leave, call it before Retire: only then are the sessions known.
func (d *Device) CompleteState() *State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.saveState(slices.Collect(maps.Values(d.peers)))
}

// Retire erases the session keys of a device after Leave, and returns its counters.
func (d *Device) Retire() *Counters {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changed.end()
	for _, p := range d.peers {
		p.stop()
	}
	d.dropStaged()
	return d.saveCounters()
}

// saveState returns the settings of the device and the state of some peers. The caller holds mu.
func (d *Device) saveState(peers []*Peer) *State {
	s := d.saveSettings()
	s.Peers = make([]PeerState, 0, len(peers))
	for _, p := range peers {
		s.Peers = append(s.Peers, p.saveState())
	}
	return s
}

// saveCounters returns the counters of a device that has ended. The caller holds mu.
func (d *Device) saveCounters() *Counters {
	c := &Counters{
		Stats: d.trafficStats(), Handshakes: d.handshakeCounts.snapshot(), Peers: make([]PeerCounters, 0, len(d.peers)),
		TUNDropsBefore: d.tunDropsBefore.Load(),
	}
	for _, p := range d.peers {
		if t := p.engine.Totals(); t != (engine.PeerTraffic{}) {
			c.Peers = append(c.Peers, PeerCounters{p.key, t})
		}
	}
	return c
}

// saveSettings returns a state with nothing but the settings of the device. The caller holds mu.
func (d *Device) saveSettings() *State {
	s := &State{
		PrivateKey: Secret(d.private), ListenPort: d.listenPort, FwMark: d.mark.Load(), Settings: d.configured(),
	}
	if *s.PostQuantum == config.DefaultPostQuantum { // not encoded
		s.PostQuantum = nil
	}
	return s
}

// Resume gives a new device the state that Leave or Snapshot returned. Once the device is up, it starts a handshake with each peer that
// had a session. Errors are those of Configure.
func (d *Device) Resume(s *State) error {
	private := noise.PrivateKey(s.PrivateKey)
	c := config.Device{
		PrivateKey: &private, FwMark: &s.FwMark, Settings: s.Settings, ReplacePeers: true,
	}
	for i := range s.Peers {
		c.Peers = append(c.Peers, s.Peers[i].config())
	}
	d.mu.Lock()
	unused := !d.started && len(d.peers) == 0
	d.mu.Unlock()
	if !unused {
		return errors.New("resuming a device that is in use")
	}
	err := d.Configure(c)
	if err == nil { // after the spread ports, as the other device may have got it: then it may be one of them
		err = d.Configure(config.Device{ListenPort: &s.ListenPort})
	}
	if err != nil {
		return fmt.Errorf("resuming a device: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range s.Peers {
		if p := d.peers[s.Peers[i].PublicKey]; p != nil {
			d.restorePeer(p, &s.Peers[i])
		}
	}
	return nil
}

// Update gives a device that has resumed from a Snapshot, and was not started, what Changes or Leave of the same device returned afterwards. Its
// cost does not depend on the number of peers that have not changed.
func (d *Device) Update(changes *State) error {
	if err := d.Configure(config.Device{ListenPort: &changes.ListenPort}); err != nil {
		return fmt.Errorf("updating a device: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.started {
		return errors.New("updating a device that is in use")
	}
	for i := range changes.Peers {
		p := d.peers[changes.Peers[i].PublicKey]
		if p == nil {
			return errors.New("updating a device: it has no peer of this key")
		}
		d.restorePeer(p, &changes.Peers[i])
	}
	return nil
}

// restorePeer restores the state of one peer. The caller holds mu.
func (d *Device) restorePeer(p *Peer, s *PeerState) {
	p.restore(s)
	if s.Hello != nil {
		d.startFirst = append(d.startFirst, p.key)
	}
}

// AddCounters adds the counters of the device whose state this one has resumed. Call it once; the device may run.
func (d *Device) AddCounters(c *Counters) {
	stats := c.Stats // not a part of c: the engine keeps it
	d.engine.Resume(&stats)
	d.handshakeCounts.add(c.Handshakes)
	d.tunDropsBefore.Store(c.TUNDropsBefore)
	for i := range c.Peers {
		if p := d.lookup(c.Peers[i].PublicKey); p != nil {
			p.engine.AddTotals(c.Peers[i].Traffic)
		}
	}
}

// config returns the peer's configuration.
func (s *PeerState) config() config.Peer {
	psk := noise.PresharedKey(s.PresharedKey)
	c := config.Peer{PublicKey: s.PublicKey, Name: &s.Name, PresharedKey: &psk, Keepalive: &s.Keepalive, PostQuantum: &s.PostQuantum, ReplaceAllowedIPs: true}
	for _, prefix := range s.AllowedIPs {
		c.AllowedIPs = append(c.AllowedIPs, config.AllowedIP{Prefix: prefix})
	}
	return c
}
