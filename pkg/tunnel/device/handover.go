// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Snapshot returns the state of a running device for Resume of another one. That may take long, and this device goes on meanwhile: Leave then
// returns only the peers that have changed since, for Update. The state has no counters of the device, and no sessions. Until Leave or
// DiscardSnapshot, Configure fails. It is an error if the device has ended before, or was not started.
func (d *Device) Snapshot() (*State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || !d.started {
		return nil, d.errCannotLeave()
	}
	d.changed.begin()
	s := d.saveSettings()
	s.Stats.Drops = map[string]uint64{}
	s.Peers = make([]PeerState, 0, len(d.peers))
	for _, p := range d.peers {
		s.Peers = append(s.Peers, p.snapshot())
	}
	return s, nil
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

// Leave ends the device as Close does, and returns the state that another device needs to continue: all of it, or the changes since
// Snapshot. It first stops reading the TUN, then the port, so that all packets that were read are sent. Later packets wait in the kernel if
// another process keeps the descriptors (tun.HandoverDevice, udp.Port.Keep). The device sends nothing after Leave has returned. It is an
// error if the device has ended before, or was not started.
func (d *Device) Leave() (*State, error) {
	d.mu.Lock()
	if d.closed || !d.started {
		err := d.errCannotLeave()
		d.mu.Unlock()
		return nil, err
	}
	d.handingOver, d.closed = true, true
	if !d.up {
		d.noteAllChanged() // a device that is down carries no packets, so Leave may take long
	}
	d.mu.Unlock()
	if k, ok := d.cfg.TUN.(tun.HandoverDevice); ok {
		if err := k.StopReading(); err != nil {
			d.log.Warn("stopping reads from the TUN device failed, packets may be lost during the handover", "error", err)
		} else {
			d.engine.Wait()
		}
	}
	d.drain()
	if err := d.cfg.TUN.Close(); err != nil {
		d.log.Warn("closing the TUN device for the handover failed, its descriptors close with this process: the new daemon has the same queues", "error", err)
	}
	<-d.done
	return d.saveState(), nil
}

// drain takes the device down for Leave: sessions last until the lanes have handled all that they have read.
func (d *Device) drain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.up {
		d.discardEndedSessions()
	}
	d.closeSources()
	if err := d.engine.Detach(); err != nil {
		d.log.Warn("closing the listen port for the handover failed, its descriptors close with this process: the new daemon has the same sockets", "error", err)
	}
	d.down()
}

// discardEndedSessions leaves hello results out of the handover of a device that is down: its sessions ended when it went down. A device that
// has resumed and was never up passes on the results that it was given. The caller holds mu.
func (d *Device) discardEndedSessions() {
	for _, p := range d.peers {
		p.mu.Lock()
		p.handover.ended = p.handover.restored
		p.mu.Unlock()
	}
}

// noteAllChanged makes Leave return all peers. The caller holds mu.
func (d *Device) noteAllChanged() {
	for _, p := range d.peers {
		p.noteChange()
	}
}

// stopLate stops the peers that workers have changed since drain, such as one whose initiation was accepted. The workers have ended.
func (d *Device) stopLate() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.activePeers() {
		if p.isRunning() {
			p.stop()
		}
	}
}

// saveState returns the state of a device that has ended.
func (d *Device) saveState() *State {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.saveSettings()
	s.Stats, s.Handshakes = d.trafficStats(), d.handshakeCounts.snapshot()
	for _, p := range d.activePeers() {
		s.Peers = append(s.Peers, p.saveState())
	}
	return s
}

// saveSettings returns a state with nothing but the settings of the device. The caller holds mu.
func (d *Device) saveSettings() *State {
	return &State{
		PrivateKey: Secret(d.private), ListenPort: d.listenPort, FwMark: d.mark.Load(),
		Spread: d.spreading.Load().mode, SpreadPorts: d.spreading.Load().ports, Spray: d.spreading.Load().spray, Underlay: config.UnderlayMode(d.underlayMode.Load()),
		ReceiveCPUs: d.receiveCPUsState(), OuterFragments: config.OuterFragments(d.fragments.Load()),
	}
}

// Resume gives a new device the state that Leave or Snapshot returned. Once the device is up, it starts a handshake with each peer that
// had a session. Errors are those of Configure.
func (d *Device) Resume(s *State) error {
	private := noise.PrivateKey(s.PrivateKey)
	c := config.Device{
		PrivateKey: &private, ListenPort: &s.ListenPort, FwMark: &s.FwMark, Spread: &s.Spread, SpreadPorts: &s.SpreadPorts, Spray: &s.Spray,
		Underlay: &s.Underlay, ReceiveCPUs: s.ReceiveCPUs, OuterFragments: &s.OuterFragments, ReplacePeers: true,
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
	if err := d.Configure(c); err != nil {
		return fmt.Errorf("resuming a device: %w", err)
	}
	d.engine.Resume(&s.Stats)
	d.handshakeCounts.add(s.Handshakes)
	for i := range s.Peers {
		if p := d.lookup(s.Peers[i].PublicKey); p != nil {
			p.restore(&s.Peers[i])
		}
	}
	return nil
}

// Update gives a device that has resumed from a Snapshot, and was not started, what Leave of the same device returned afterwards. Its cost does
// not depend on the number of peers that have not changed.
func (d *Device) Update(changes *State) error {
	if err := d.Configure(config.Device{ListenPort: &changes.ListenPort}); err != nil {
		return fmt.Errorf("updating a device: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.started {
		return errors.New("updating a device that is in use")
	}
	d.engine.Resume(&changes.Stats)
	d.handshakeCounts.add(changes.Handshakes)
	for i := range changes.Peers {
		s := &changes.Peers[i]
		p := d.peers[s.PublicKey]
		if p == nil {
			return errors.New("updating a device: it has no peer of this key")
		}
		p.restore(s)
		if s.Hello != nil {
			d.startFirst = append(d.startFirst, p.key)
		}
	}
	return nil
}

// Merge returns the state of Snapshot with the changes that Leave has returned, for Resume.
func (s *State) Merge(changes *State) *State {
	merged := *changes
	merged.Peers = slices.Clone(s.Peers)
	at := make(map[noise.PublicKey]int, len(s.Peers))
	for i := range s.Peers {
		at[s.Peers[i].PublicKey] = i
	}
	for i := range changes.Peers {
		if n, ok := at[changes.Peers[i].PublicKey]; ok {
			merged.Peers[n] = changes.Peers[i]
		}
	}
	return &merged
}

// config returns the peer's configuration.
func (s *PeerState) config() config.Peer {
	psk := noise.PresharedKey(s.PresharedKey)
	c := config.Peer{PublicKey: s.PublicKey, Name: &s.Name, PresharedKey: &psk, Keepalive: &s.Keepalive, ReplaceAllowedIPs: true}
	for _, prefix := range s.AllowedIPs {
		c.AllowedIPs = append(c.AllowedIPs, config.AllowedIP{Prefix: prefix})
	}
	return c
}
