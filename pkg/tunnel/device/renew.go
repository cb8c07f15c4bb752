// SPDX-License-Identifier: Apache-2.0

package device

import "time"

// retryIntervals are the times, in ns, that a device waits for an answer before it repeats an initiation that renews a session. After
// them the WireGuard timers take over. These retries are faster: traffic waits, and the peer answered a moment ago. Until it has answered,
// it sends messages of erased sessions, which may fill the receive buffer so that its response is lost. A response to an earlier
// initiation is no longer accepted, so the intervals grow. The first is long enough for peers: the kernel's WireGuard and wireguard-go
// accept one initiation in 20 ms (INITIATIONS_PER_SECOND, drivers/net/wireguard/messages.h).
var retryIntervals = [...]int64{
	int64(60 * time.Millisecond), int64(250 * time.Millisecond), int64(750 * time.Millisecond), int64(2 * time.Second),
}

// maxRenewals is the number of sessions that a device renews at the same time. It is half of the load that makes a device ask for cookies: the answers
// to its own initiations must not.
const maxRenewals = underLoadLen / 2

// turnRetries is the number of retries after which a peer that does not answer leaves its turn to others.
const turnRetries = 2

// renew starts a handshake with a peer whose session this device has erased, once it is the peer's turn. The peer still sends with that
// session, and would start a handshake only after 15 s without an answer (Keepalive-Timeout + Rekey-Timeout). The caller holds mu.
func (p *Peer) renew(now int64) {
	if p.hasStaged() || p.dev.renewals.Enter(p) {
		p.startRenewal(now)
	}
}

// takeTurn starts the handshake for which renew has waited, unless traffic has started one meanwhile. The caller holds mu.
func (p *Peer) takeTurn(now int64) {
	r := &p.dev.renewals
	running, _ := r.State(p)
	switch {
	case !running:
	case p.hasSession() || p.handshake.attempt != nil:
		r.Leave(p)
	default:
		p.startRenewal(now)
	}
}

// startRenewal sends the initiation of renew. The caller holds mu.
func (p *Peer) startRenewal(now int64) {
	p.timers.HandshakeWanted(now) // the time until it gives up begins
	p.sendInitiation(now)
	p.timers.retries, p.timers.retryAt = 0, now+retryIntervals[0]
}

// retryHandshake repeats the initiation of renew when that is due. The caller holds mu.
func (p *Peer) retryHandshake(now int64) {
	t := &p.timers
	if t.retryAt == 0 || now < t.retryAt {
		return
	}
	t.retryAt = 0
	if p.handshake.attempt == nil { // there is a session, or there can be none
		p.dev.renewals.Leave(p)
		return
	}
	p.sendInitiation(now)
	if t.retries++; int(t.retries) < len(retryIntervals) {
		t.retryAt = now + retryIntervals[t.retries]
	}
	if t.retries == turnRetries {
		p.dev.renewals.Leave(p)
	}
}

// MachineCopied erases all keys and renews the sessions. Call it after the virtual machine was restored from a snapshot or cloned: another
// copy of it may use the same keys with the same nonces. It is safe for concurrent use.
func (d *Device) MachineCopied() {
	n := d.renewSessions(func(p *Peer, _ int64) bool { return p.hasSession() })
	d.log.Warn("this machine is a copy (VM generation ID changed): erased all session keys, starting new handshakes", "peers", n)
}

// MachineResumed erases all keys and renews the sessions that peers may still use. Call it when the machine has woken from suspend or
// hibernation: the image of a hibernation has the keys in it. The in-kernel WireGuard erases them when the suspend begins
// (wg_pm_notification). It is safe for concurrent use.
func (d *Device) MachineResumed() {
	n := d.renewSessions((*Peer).isLive)
	d.log.Info("machine was suspended: erased all session keys, starting new handshakes with peers whose sessions had not expired", "peers", n)
}

// isLive reports whether the peer may send or receive with a present session. The caller holds mu.
func (p *Peer) isLive(now int64) bool {
	return p.sessions.next != nil || p.controlKeys().Usable(now)
}

// renewSessions erases the keys of all peers. Then it renews the sessions that renewable selects, and the handshakes in flight. It returns
// the number of sessions and handshakes.
func (d *Device) renewSessions(renewable func(p *Peer, now int64) bool) int {
	lost := d.eraseAllSessions(renewable) // of all peers first: handshakes with thousands take seconds
	for _, p := range lost {
		p.mu.Lock()
		if p.running && !p.hasSession() && p.handshake.attempt == nil { // else traffic has renewed it meanwhile
			now := p.dev.clock()
			p.renew(now)
			p.armTimer(now)
		}
		p.mu.Unlock()
	}
	return len(lost)
}

// eraseAllSessions erases the session keys and ends the handshakes of all peers. It returns the peers to renew.
func (d *Device) eraseAllSessions(renewable func(p *Peer, now int64) bool) (lost []*Peer) {
	d.peersMu.RLock()
	defer d.peersMu.RUnlock()
	for _, p := range d.peers {
		p.mu.Lock()
		if p.running && (p.handshake.attempt != nil || renewable(p, d.clock())) {
			lost = append(lost, p)
		}
		p.eraseSessions()
		p.quantum.machine.Load().Erase() // an image of the machine has the keys, too
		p.endAttempt()
		p.mu.Unlock()
	}
	return lost
}
