// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Leave ends the device as Close does, and returns the state that another device needs to continue. It first stops reading
// the TUN, then the port, so that all packets that were read are sent. Later packets wait in the kernel if another process
// keeps the descriptors (tun.HandoverDevice, udp.Port.Keep). The device sends nothing after Leave has returned. It is an error if
// the device has ended before, or was not started.
func (d *Device) Leave() (*State, error) {
	d.mu.Lock()
	if d.closed || !d.started {
		d.mu.Unlock()
		return nil, fmt.Errorf("handing over %s: the interface was deleted, or its daemon is ending: %w", d.cfg.TUN.Name(), syscall.ENODEV)
	}
	d.handingOver, d.closed = true, true
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
		d.log.Warn("closing the TUN device failed during the handover, its queues close when this process ends", "error", err)
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
		d.log.Warn("closing the listen port failed during the handover, continuing", "error", err)
	}
	d.down()
}

// discardEndedSessions excludes the hello results of a device that was down before from the handover, since its sessions
// ended then. A device that has resumed and was never up passes on the results that it was given. The caller holds mu.
func (d *Device) discardEndedSessions() {
	for _, p := range d.peers {
		p.mu.Lock()
		p.handover.ended = p.handover.restored
		p.mu.Unlock()
	}
}

// saveState returns the state of a device that has ended.
func (d *Device) saveState() *State {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &State{
		PrivateKey: Secret(d.private), ListenPort: d.listenPort, FwMark: d.mark.Load(),
		Spread: d.spreading.Load().mode, SpreadPorts: d.spreading.Load().ports, Underlay: config.UnderlayMode(d.underlayMode.Load()),
		ReceiveCPUs: d.receiveCPUsState(), OuterFragments: config.OuterFragments(d.fragments.Load()),
		Stats: d.trafficStats(), Handshakes: d.handshakeCounts.snapshot(),
	}
	for _, p := range d.peers {
		s.Peers = append(s.Peers, p.saveState())
	}
	return s
}

// Resume gives a new device the state that Leave returned. Once the device is up, it starts a handshake with each peer that
// had a session. Errors are those of Configure.
func (d *Device) Resume(s *State) error {
	private := noise.PrivateKey(s.PrivateKey)
	c := config.Device{
		PrivateKey: &private, ListenPort: &s.ListenPort, FwMark: &s.FwMark, Spread: &s.Spread, SpreadPorts: &s.SpreadPorts,
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

// config returns the peer's configuration.
func (s *PeerState) config() config.Peer {
	psk := noise.PresharedKey(s.PresharedKey)
	c := config.Peer{PublicKey: s.PublicKey, Name: &s.Name, PresharedKey: &psk, Keepalive: &s.Keepalive, ReplaceAllowedIPs: true}
	for _, prefix := range s.AllowedIPs {
		c.AllowedIPs = append(c.AllowedIPs, config.AllowedIP{Prefix: prefix})
	}
	return c
}
