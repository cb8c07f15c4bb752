// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"syscall"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Configure applies a change as a whole, or returns an error and changes nothing. Errors are those of opening the
// port (syscall.EADDRINUSE among them), of setting the mark, ErrTooManyPeers, and syscall.EINVAL for invalid values.
func (d *Device) Configure(c config.Device) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("configuring %s: the interface was deleted, or its daemon is ending: %w", d.cfg.TUN.Name(), syscall.ENODEV)
	}
	if d.changed.tracking.Load() {
		return fmt.Errorf("configuring %s: it is being handed over to another process: %w", d.cfg.TUN.Name(), syscall.EBUSY)
	}
	if err := d.checkPeers(&c); err != nil {
		return err
	}
	if err := cmp.Or(checkPeerSettings(c.Peers), d.checkSpread(&c), checkUnderlay(c.Underlay), checkPostQuantum(c.PostQuantum)); err != nil {
		return err
	}
	private := clamped(c.PrivateKey)
	id, err := newIdentity(private)
	if err != nil {
		return err
	}
	if err := d.configurePort(c.ListenPort, c.FwMark); err != nil {
		return err
	}
	spreadBefore := d.spreading.Load().mode
	d.configureSpread(c.Spread, c.SpreadPorts, c.Spray)
	d.configureUnderlay(c.Underlay)
	d.configureFragments(c.OuterFragments)
	d.configurePostQuantum(c.PostQuantum, spreadBefore)
	if private != nil && !private.Equal(d.private) {
		d.replaceIdentity(*private, id)
	}
	if c.ReplacePeers {
		d.removePeers(slices.Collect(maps.Values(d.peers))...)
	}
	d.configurePeers(c.Peers)
	return nil
}

// configured returns the present settings. The caller may change them.
func (d *Device) configured() config.Settings {
	s := *d.spreading.Load()
	underlay, fragments := config.UnderlayMode(d.underlayMode.Load()), config.OnOff(d.fragments.Load())
	quantum := config.PostQuantum(d.postQuantum.Load()).Or(config.DefaultPostQuantum)
	return config.Settings{
		Spread: &s.mode, SpreadPorts: &s.ports, Spray: &s.spray, Underlay: &underlay, OuterFragments: &fragments, PostQuantum: &quantum,
	}
}

// checkPeers returns an error if the change could leave more than MaxPeers peers.
func (d *Device) checkPeers(c *config.Device) error {
	n := len(c.Peers)
	if !c.ReplacePeers {
		n = len(d.peers)
		for i := range c.Peers {
			if d.peers[c.Peers[i].PublicKey] == nil && !c.Peers[i].Remove && !c.Peers[i].UpdateOnly {
				n++
			}
		}
	}
	if n > MaxPeers {
		return fmt.Errorf("configuring %d peers, want at most %d: %w", n, MaxPeers, ErrTooManyPeers)
	}
	return nil
}

// checkPeerSettings returns an error for a name or a prefix that is invalid, such as the zero Prefix.
func checkPeerSettings(peers []config.Peer) error {
	for i := range peers {
		if name := peers[i].Name; name != nil {
			if err := config.CheckName(*name); err != nil {
				return fmt.Errorf("setting the name of peer %s: %w (%w)", peers[i].PublicKey, err, syscall.EINVAL)
			}
		}
		if err := config.CheckEndpointName(peers[i].EndpointName); err != nil {
			return fmt.Errorf("setting the endpoint of peer %s: %w (%w)", peers[i].PublicKey, err, syscall.EINVAL)
		}
		if err := checkPostQuantum(peers[i].PostQuantum); err != nil {
			return err
		}
		for _, a := range peers[i].AllowedIPs {
			if !a.Prefix.IsValid() {
				return fmt.Errorf("setting allowed IPs of peer %s: allowed IP %s: %w", peers[i].PublicKey, a.Prefix, syscall.EINVAL)
			}
		}
	}
	return nil
}

// checkPostQuantum returns an error for an unknown policy.
func checkPostQuantum(policy *config.PostQuantum) error {
	if policy == nil {
		return nil
	}
	if _, err := config.ParsePostQuantum(policy.String()); err != nil {
		return fmt.Errorf("setting post-quantum: %w (%w)", err, syscall.EINVAL)
	}
	return nil
}

// clamped returns the key as Curve25519 uses it. Stock devices report it in this form too.
func clamped(key *noise.PrivateKey) *noise.PrivateKey {
	if key == nil || key.IsZero() {
		return key
	}
	k := key.Clamp()
	return &k
}

// newIdentity returns nil for no key and for the zero key.
func newIdentity(key *noise.PrivateKey) (*identity, error) {
	if key == nil || key.IsZero() {
		return nil, nil
	}
	var id *noise.Identity
	var err error
	noise.Secretly(func() { id, err = noise.NewIdentity(*key) })
	if err != nil {
		return nil, fmt.Errorf("setting private key: %w", err)
	}
	return &identity{Identity: id, checker: noise.NewCookieChecker(id.Public())}, nil
}

// configurePort changes the listen port and the firewall mark; nil leaves a setting unchanged.
func (d *Device) configurePort(listen *uint16, mark *uint32) error {
	port := d.port.Load()
	newMark := d.mark.Load()
	if mark != nil {
		newMark = *mark
	}
	switch {
	case listen != nil && port != nil && *listen != d.listenPort:
		next, err := d.openPort(*listen, newMark)
		if err != nil {
			return err
		}
		if err := d.attachPort(next); err != nil {
			return err
		}
	case mark != nil && port != nil && *mark != d.mark.Load():
		if err := port.SetMark(*mark); err != nil {
			return fmt.Errorf("setting firewall mark: %w", err)
		}
	}
	if err := d.configureListen(listen, newMark); err != nil {
		return err
	}
	if d.mark.Swap(newMark) != newMark {
		for _, p := range d.peers {
			p.clearSource() // another mark may mean another route
			p.requestRoute()
		}
	}
	return nil
}

// configureListen sets the listen port of a device without an open port: the link is down, or the port was busy when the
// link came up. In the latter case it opens the port.
func (d *Device) configureListen(listen *uint16, mark uint32) error {
	switch {
	case d.up:
		return nil
	case listen == nil && d.linkUp:
		if err := d.bringUp(d.listenPort, mark); err != nil {
			d.logPortFailure(err)
		}
		return nil
	case listen == nil:
		return nil
	case !d.linkUp:
		return d.reserveListen(*listen)
	}
	return d.bringUp(*listen, mark)
}

// reserveListen sets the listen port while the link is down. A port in use is refused: nobody would see the error when the link comes up. Before
// Start the process that hands the device over may still have the port.
func (d *Device) reserveListen(port uint16) error {
	if d.started {
		if err := d.cfg.ReservePort(port); err != nil {
			return fmt.Errorf("setting listen port %d: %w", port, err)
		}
	}
	d.listenPort = port
	return nil
}

// replaceIdentity changes the private key and ends all sessions of the old one.
func (d *Device) replaceIdentity(key noise.PrivateKey, id *identity) {
	d.private = key
	d.identity.Store(id)
	if id != nil {
		d.removePeers(d.peers[id.Public()]) // a device cannot be its own peer
	}
	now := d.clock()
	for _, p := range d.peers {
		p.mu.Lock()
		p.eraseSessions()
		p.endAttempt()
		p.setIdentity(id)
		p.timers.IdentityReplaced(now)
		if p.running {
			p.armTimer(now)
		}
		p.mu.Unlock()
	}
}

// setIdentity derives the handshake keys for id and the peer. No handshake may be in flight. The caller holds mu.
func (p *Peer) setIdentity(id *identity) {
	p.handshake.remote, p.handshake.initiator, p.handshake.cookies = nil, nil, nil
	p.quantum.machine.Load().Erase()
	defer p.updateRefusal()
	if id == nil {
		return
	}
	p.quantum.machine.Load().SetIdentity(id.Public(), p.key)
	var remote *noise.Remote
	var err error
	noise.Secretly(func() { remote, err = noise.NewRemote(id.Identity, p.key) })
	if err != nil {
		p.log().Warn("public key of the peer is invalid, no handshake with this peer is possible until it has another key", "peer", p.key, "error", err)
		return
	}
	p.handshake.remote = remote
}

// configurePeers applies changes of peers in order. They cannot fail.
func (d *Device) configurePeers(changes []config.Peer) {
	var routes []routeChange
	for i := range changes {
		c := &changes[i]
		if c.Remove {
			d.configureRoutes(routes)
			routes = routes[:0]
			d.removePeers(d.peers[c.PublicKey])
		} else if p := d.configurePeer(c); p != nil && (c.ReplaceAllowedIPs || len(c.AllowedIPs) > 0) {
			routes = append(routes, routeChange{p.engine, c})
		}
	}
	d.configureRoutes(routes)
}

// configurePeer applies one change except its allowed IPs, and returns the peer, nil for none.
func (d *Device) configurePeer(c *config.Peer) *Peer {
	if id := d.identity.Load(); id != nil && id.Public() == c.PublicKey {
		return nil // as stock devices do
	}
	p := d.peers[c.PublicKey]
	if p == nil && c.UpdateOnly {
		return nil
	}
	created := p == nil
	if created {
		p = d.addPeer(c.PublicKey)
	}
	p.configure(c)
	if created {
		p.recall()
	}
	if created && d.up {
		p.start()
	}
	return p
}

func (d *Device) addPeer(key noise.PublicKey) *Peer {
	p := &Peer{dev: d, key: key, hello: helloExchange{remote: noHello}}
	p.quantum.peer = p
	p.engine = d.engine.NewPeer(p)
	p.engine.Activity.Waker = p
	p.mu.Lock()
	p.setIdentity(d.identity.Load())
	p.quantum.updatePolicy()
	p.mu.Unlock()
	d.peersMu.Lock()
	d.peers[key] = p
	d.peersMu.Unlock()
	return p
}

// routeChange is a change of one peer's allowed IPs.
type routeChange struct {
	lane *engine.Peer
	to   *config.Peer
}

// configureRoutes applies all changes of allowed IPs in one update. One update per peer would copy parts of the table each
// time, and produce garbage.
func (d *Device) configureRoutes(changes []routeChange) {
	if len(changes) == 0 {
		return
	}
	d.engine.Routes.Update(func(e *peer.Editor[*engine.Peer]) {
		for _, c := range changes {
			c.apply(e)
		}
	})
}

func (c routeChange) apply(e *peer.Editor[*engine.Peer]) {
	if c.to.ReplaceAllowedIPs {
		e.RemoveOwner(c.lane)
	}
	for _, a := range c.to.AllowedIPs {
		if a.Remove {
			e.Remove(a.Prefix, c.lane)
		} else {
			e.Add(a.Prefix, c.lane)
		}
	}
}

// configure applies a change of preshared key, endpoint and keepalive interval.
func (p *Peer) configure(c *config.Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Name != nil {
		p.configureName(*c.Name)
	}
	if c.PresharedKey != nil {
		p.handshake.psk = *c.PresharedKey
	}
	if c.PostQuantum != nil {
		p.quantum.own = *c.PostQuantum
		p.quantum.updatePolicy()
	}
	if c.Endpoint != nil {
		at := c.Endpoint.AddrPort
		to := &underlay.Endpoint{Dst: netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), Scope: c.Endpoint.Scope}
		p.configureEndpointName(c.EndpointName, config.Endpoint{AddrPort: to.Dst, Scope: to.Scope})
		if p.configureEndpoint(to) {
			p.renewHello(true)
		}
		if p.running {
			p.updateGuard()
		}
	}
	if c.Keepalive != nil && *c.Keepalive != p.timers.keepalive {
		p.timers.keepalive = *c.Keepalive
		if p.running {
			p.timers.SetKeepalive(p.timers.keepalive)
			p.armTimer(p.dev.clock())
		}
	}
}

// removePeers removes peers and skips nil ones. The caller holds mu.
func (d *Device) removePeers(list ...*Peer) {
	list = slices.DeleteFunc(list, func(p *Peer) bool { return p == nil })
	if len(list) == 0 {
		return
	}
	d.engine.Routes.Update(func(e *peer.Editor[*engine.Peer]) {
		for _, p := range list {
			e.RemoveOwner(p.engine)
		}
	})
	for _, p := range list {
		p.stop()
		p.mu.Lock()
		p.removed = true
		p.updateRefusal() // before the rest, so that lanes add nothing
		p.dropStaged()
		p.mu.Unlock()
		d.peersMu.Lock()
		delete(d.peers, p.key)
		d.peersMu.Unlock()
	}
}

// checkSpread returns an error if the mode is unknown, or if the source ports contain the listen port.
func (d *Device) checkSpread(c *config.Device) error {
	if c.Spread != nil {
		if _, err := config.ParseSpreadMode(c.Spread.String()); err != nil {
			return fmt.Errorf("setting spread: %w (%w)", err, syscall.EINVAL)
		}
	}
	if c.SpreadPorts == nil || *c.SpreadPorts == spread.DefaultPorts { // of which the listen port is left out
		return nil
	}
	listen := d.listenPort
	if c.ListenPort != nil {
		listen = *c.ListenPort
	}
	if err := config.CheckPorts(*c.SpreadPorts, listen); err != nil {
		return fmt.Errorf("setting spread ports: %w", err)
	}
	return nil
}

// configureSpread changes the spread mode and ports, and spraying; nil leaves a setting unchanged. The caller holds mu.
func (d *Device) configureSpread(mode *config.SpreadMode, ports *spread.Ports, spray *config.Spray) {
	old := *d.spreading.Load()
	s := old
	if mode != nil {
		s.mode = *mode
	}
	if ports != nil {
		s.ports = *ports
	}
	if spray != nil {
		s.spray = *spray
	}
	if s == old {
		return
	}
	d.spreading.Store(&s)
	if s.mode.Disables(s.spray) && !old.mode.Disables(old.spray) {
		d.log.Warn("spray has no effect while spread is off", "spray", s.spray)
	}
	if old.spray = s.spray; s == old {
		d.updateSpray()
		return
	}
	d.resetSources()
	d.resetSelection()
	d.renewHellos(false)
}
