// SPDX-License-Identifier: Apache-2.0

package device

// UsesScope reports whether the endpoint of a peer is a link-local address on the link with this index. It is safe for concurrent use.
func (d *Device) UsesScope(index uint32) bool {
	d.peers.mu.RLock()
	defer d.peers.mu.RUnlock()
	for _, p := range d.peers.list {
		if to := p.engine.Endpoint.Load(); to != nil && to.Scope == index {
			return true
		}
	}
	return false
}

// MoveScope moves the endpoints on a link to another index, which the link has got since it was deleted and created again. It is safe for
// concurrent use.
func (d *Device) MoveScope(from, to uint32) {
	d.peers.mu.RLock()
	defer d.peers.mu.RUnlock()
	for _, p := range d.peers.list {
		p.location.moveScope(from, to)
	}
}

// RoutesChanged requests lookups of the routes to all peers. A peer whose route has changed, or
// whose route is unknown, forgets the local address on which it last reached us. Call it when the
// host's routes, addresses or links have changed.
func (d *Device) RoutesChanged() {
	d.loops.generation.Add(1)
	if port := d.outer.port.Load(); port != nil {
		port.RoutesChanged()
	}
	d.peers.mu.RLock()
	defer d.peers.mu.RUnlock()
	for _, p := range d.peers.list {
		p.mu.Lock()
		if !p.mtu.sourceRouteKnown(d.clock()) {
			p.location.clearSource()
		}
		p.probing.retest = true
		p.mu.Unlock()
		p.requestRoute()
	}
}

// ClockJumped evaluates all timers that are set. Call it after the machine was suspended: Go's timers stop during a suspend, while
// Config.Clock may go on, so keys would be erased late.
func (d *Device) ClockJumped() {
	d.peers.mu.RLock()
	defer d.peers.mu.RUnlock()
	for _, p := range d.peers.list {
		p.mu.Lock()
		armed := p.timers.timer != nil
		p.mu.Unlock()
		if armed {
			p.Wake()
		}
	}
}

// MachineCopied erases all keys and renews the sessions. Call it after the virtual machine was
// restored from a snapshot or cloned. Another copy of it may use the same keys with the same
// nonces. It is safe for concurrent use.
func (d *Device) MachineCopied() {
	n := d.renewSessions(func(p *Peer, _ int64) bool { return p.sessions.has() })
	d.log.Warn("this machine is a copy (VM generation ID changed): erased all session keys, starting new handshakes", "peers", n)
}

// MachineResumed erases all keys and renews the sessions that peers may still use. Call it when the machine has woken from suspend or
// hibernation: the image of a hibernation has the keys in it. The in-kernel WireGuard erases them when the suspend begins
// (wg_pm_notification). It is safe for concurrent use.
func (d *Device) MachineResumed() {
	n := d.renewSessions(func(p *Peer, now int64) bool { return p.sessions.isLive(now) })
	d.log.Info("machine was suspended: erased all session keys, starting new handshakes with peers whose sessions had not expired", "peers", n)
}

// renewSessions erases the keys of all peers. Then it renews the sessions that renewable selects, and the handshakes in flight. It returns
// the number of sessions and handshakes.
func (d *Device) renewSessions(renewable func(p *Peer, now int64) bool) int {
	lost := d.eraseAllSessions(renewable) // of all peers first: handshakes with thousands take seconds
	for _, p := range lost {
		p.mu.Lock()
		if p.running && !p.sessions.has() && p.handshake.attempt == nil { // else traffic has renewed it meanwhile
			now := p.dev.clock()
			p.handshake.renew(now)
			p.armTimer(now)
		}
		p.mu.Unlock()
	}
	return len(lost)
}

// eraseAllSessions erases the session keys and ends the handshakes of all peers. It returns the peers to renew.
func (d *Device) eraseAllSessions(renewable func(p *Peer, now int64) bool) (lost []*Peer) {
	d.peers.mu.RLock()
	defer d.peers.mu.RUnlock()
	for p := range d.peers.locked() {
		if p.running && (p.handshake.attempt != nil || renewable(p, d.clock())) {
			lost = append(lost, p)
		}
		p.sessions.erase()
		p.quantum.machine.Load().Erase() // an image of the machine also has the keys
		p.handshake.endAttempt()
	}
	return lost
}
