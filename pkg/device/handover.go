// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/noise"
	"github.com/ropewalk/ropewalk/pkg/tun"
	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

// Leave ends the device as Close does, and returns what another one needs to go on in its place. First nothing is read from the
// TUN any more, then nothing from the port, so that all that was read has been carried; what comes then waits where it is if
// somebody keeps the descriptors (tun.Keeper, udp.Port.Keep). Nothing is sent after it has returned. It is an error when the
// device has ended before, or was not started.
func (d *Device) Leave() (*State, error) {
	d.mu.Lock()
	if d.closed || !d.started {
		d.mu.Unlock()
		return nil, fmt.Errorf("leaving %s: the interface is gone: %w", d.cfg.TUN.Name(), syscall.ENODEV)
	}
	d.handingOver, d.closed = true, true
	d.mu.Unlock()
	if k, ok := d.cfg.TUN.(tun.Keeper); ok {
		if err := k.StopReading(); err != nil {
			d.log.Warn("leaving", "error", err)
		} else {
			d.engine.Wait()
		}
	}
	d.drain()
	if err := d.cfg.TUN.Close(); err != nil {
		d.log.Warn("closing the tun device", "error", err)
	}
	<-d.done
	return d.saveState(), nil
}

// drain is down for Leave: sessions last until the lanes have carried what they had read.
func (d *Device) drain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.up {
		d.discardEndedSessions()
	}
	d.closeSources()
	if err := d.engine.Detach(); err != nil {
		d.log.Warn("closing the port", "error", err)
	}
	d.down()
}

// discardEndedSessions is for a device that was down before: its sessions ended then, and nobody is to go on with them, but with those of one
// that has resumed and was never up. The caller holds mu.
func (d *Device) discardEndedSessions() {
	for _, p := range d.peers {
		p.mu.Lock()
		p.left = p.resumed
		p.mu.Unlock()
	}
}

// saveState is that of a device that has ended.
func (d *Device) saveState() *State {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &State{
		PrivateKey: Secret(d.private), ListenPort: d.listenPort, FwMark: d.mark.Load(),
		Spread: d.spreading.Load().mode, SpreadPorts: d.spreading.Load().ports, Underlay: config.UnderlayMode(d.underlayMode.Load()),
		ReceiveCPUs: d.receiveCPUsState(),
		Stats:       d.trafficStats(), Handshakes: d.handshakeCounts.snapshot(),
	}
	for _, p := range d.peers {
		s.Peers = append(s.Peers, p.saveState())
	}
	return s
}

func (p *Peer) saveState() PeerState {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PeerState{
		PublicKey: p.key, PresharedKey: Secret(p.psk), Keepalive: p.keepalive, AllowedIPs: p.dev.engine.Routes.Prefixes(p.engine),
		LastHandshake: p.lastHandshake, Traffic: p.engine.Totals(), Greatest: Timestamp(p.greatest), Initiated: Timestamp(p.initiatedAt),
		LastConsumed: p.lastConsumed, Session: p.left,
	}
	if to := p.engine.Endpoint.Load(); to != nil {
		s.Endpoint, s.Scope, s.Source = to.Dst, to.Scope, to.Src
	}
	return s
}

// saveSession is what the peers know of each other; nil without a session. The caller holds mu.
func (p *Peer) saveSession() *SessionState {
	if p.engine.Current.Load() == nil && p.sessions.next == nil {
		return nil
	}
	h := &p.hello
	s := &SessionState{Ropewalk: h.ropewalk, Own: h.own, Heard: p.engine.Heard.Load(), Plan: h.plan}
	if h.known && h.nat == nil {
		s.Hello = wire.AppendHello(nil, &h.theirs)
	}
	return s
}

// Resume makes the device, which must be new, what another one was. It shakes hands, once it is up, with the peers that the other
// had a session with. Errors are those of Configure.
func (d *Device) Resume(s *State) error {
	private := noise.PrivateKey(s.PrivateKey)
	c := config.Device{
		PrivateKey: &private, ListenPort: &s.ListenPort, FwMark: &s.FwMark, Spread: &s.Spread, SpreadPorts: &s.SpreadPorts,
		Underlay: &s.Underlay, ReceiveCPUs: s.ReceiveCPUs, ReplacePeers: true,
	}
	for i := range s.Peers {
		c.Peers = append(c.Peers, s.Peers[i].config())
	}
	d.mu.Lock()
	fresh := !d.started && len(d.peers) == 0
	d.mu.Unlock()
	if !fresh {
		return errors.New("resuming a device that is in use")
	}
	if err := d.Configure(c); err != nil {
		return fmt.Errorf("resuming a device: %w", err)
	}
	d.engine.Resume(&s.Stats)
	d.handshakeCounts.resume(s.Handshakes)
	for i := range s.Peers {
		if p := d.lookup(s.Peers[i].PublicKey); p != nil {
			p.restore(&s.Peers[i])
		}
	}
	return nil
}

// config is what the peer's configuration was.
func (s *PeerState) config() config.Peer {
	psk := noise.PresharedKey(s.PresharedKey)
	c := config.Peer{PublicKey: s.PublicKey, PresharedKey: &psk, Keepalive: &s.Keepalive, ReplaceAllowedIPs: true}
	for _, prefix := range s.AllowedIPs {
		c.AllowedIPs = append(c.AllowedIPs, config.AllowedIP{Prefix: prefix})
	}
	return c
}

// restore is what Resume does for one peer.
func (p *Peer) restore(s *PeerState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.Endpoint.IsValid() {
		p.engine.Endpoint.Store(&underlay.Endpoint{Dst: s.Endpoint, Scope: s.Scope, Src: s.Source})
	}
	p.engine.Resume(s.Traffic)
	p.lastHandshake, p.lastConsumed = s.LastHandshake, s.LastConsumed
	p.greatest, p.initiatedAt = noise.Timestamp(s.Greatest), noise.Timestamp(s.Initiated)
	p.tai.Resume(p.initiatedAt)
	p.resumed = s.Session
}

// resumeSession goes on where another device has ended: what it knew of the peer holds, and there is a session as soon as can be. The
// caller holds mu.
func (p *Peer) resumeSession(now int64) {
	s := p.resumed
	if p.resumed = nil; s == nil {
		return
	}
	h := &p.hello
	if len(s.Hello) > 0 && wire.ParseHello(s.Hello, &h.theirs) == nil {
		h.known = true
	}
	h.ropewalk, h.own, h.plan = s.Ropewalk, s.Own, s.Plan
	if to := p.engine.Endpoint.Load(); to != nil && len(s.Plan) > 0 {
		p.dev.selection.plan(p, to.Dst.Addr(), s.Plan)
	}
	p.gather()
	p.engine.Heard.Store(s.Heard)
	p.apply()
	if p.timers.HandshakeWanted(now) {
		p.sendInitiation(now)
		p.insistences, p.insistAt = 0, now+retryIntervals[0]
	}
}

// retryIntervals is how long, in nanoseconds, a device that has resumed waits for an answer before it tries again, until its timers take
// over: traffic waits, the peer has answered a moment ago, and under load the answer may not have found room among what is for
// sessions that are gone. The answer to what was sent before is not accepted any more, hence the steps. Stock peers take one
// initiation in 50 ms.
var retryIntervals = [...]int64{
	int64(60 * time.Millisecond), int64(250 * time.Millisecond), int64(750 * time.Millisecond), int64(2 * time.Second),
}

// retryHandshake tries again. The caller holds mu.
func (p *Peer) retryHandshake(now int64) {
	if p.insistAt == 0 || now < p.insistAt {
		return
	}
	p.insistAt = 0
	if p.attempt == nil {
		return // there is a session
	}
	p.sendInitiation(now)
	if p.insistences++; p.insistences < len(retryIntervals) {
		p.insistAt = now + retryIntervals[p.insistences]
	}
}
