// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"syscall"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Configure applies a change as a whole, or returns an error and changes nothing. Errors are from
// opening the port (such as syscall.EADDRINUSE), from setting the mark, ErrTooManyPeers, and
// syscall.EINVAL for invalid values.
func (d *Device) Configure(c config.Device) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("configuring %s: the interface was deleted, or its daemon is ending: %w", d.cfg.TUN.Name(), syscall.ENODEV)
	}
	if d.changed.tracking.Load() {
		return fmt.Errorf("configuring %s: it is being handed over to another process: %w", d.cfg.TUN.Name(), syscall.EBUSY)
	}
	if err := d.peers.check(&c); err != nil {
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
	if err := d.outer.configure(c.ListenPort, c.FwMark); err != nil {
		return err
	}
	spreadBefore := d.spreading.Load().mode
	d.configureSpread(c.Spread, c.SpreadPorts, c.Spray)
	d.outer.setMode(c.Underlay)
	d.outer.configureFragments(c.OuterFragments)
	d.configurePostQuantum(c.PostQuantum, spreadBefore)
	if private != nil && !private.Equal(d.private) {
		d.replaceIdentity(*private, id)
	}
	if c.ReplacePeers {
		d.peers.remove(slices.Collect(maps.Values(d.peers.list))...)
	}
	d.peers.configure(c.Peers)
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

// configured returns the present settings. The caller may change them.
func (d *Device) configured() config.Settings {
	s := *d.spreading.Load()
	underlay, fragments := config.UnderlayMode(d.underlayMode.Load()), config.OnOff(d.fragments.Load())
	quantum := config.PostQuantum(d.postQuantum.Load()).Or(config.DefaultPostQuantum)
	return config.Settings{
		Spread: &s.mode, SpreadPorts: &s.ports, Spray: &s.spray, Underlay: &underlay, OuterFragments: &fragments, PostQuantum: &quantum,
	}
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

// replaceIdentity changes the private key and ends all sessions of the old one.
func (d *Device) replaceIdentity(key noise.PrivateKey, id *identity) {
	d.private = key
	d.identity.Store(id)
	if id != nil {
		d.peers.remove(d.peers.list[id.Public()]) // a device cannot be its own peer
	}
	now := d.clock()
	for p := range d.peers.locked() {
		p.sessions.erase()
		p.handshake.endAttempt()
		p.handshake.setIdentity(id)
		p.timers.IdentityReplaced(now)
		if p.running {
			p.armTimer(now)
		}
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
		d.peers.updateSpray()
		return
	}
	d.outer.resetSources()
	d.outer.resetSelection()
	d.peers.renewHellos(false)
}

// checkUnderlay returns an error if the underlay mode is unknown.
func checkUnderlay(mode *config.UnderlayMode) error {
	if mode == nil {
		return nil
	}
	if _, err := config.ParseUnderlayMode(mode.String()); err != nil {
		return fmt.Errorf("configuring the underlay: %w (%w)", err, syscall.EINVAL)
	}
	return nil
}

// configurePostQuantum sets the policy of the device; nil leaves it unchanged. spread is the mode before the present one, on which policies depend.
// The caller holds mu.
func (d *Device) configurePostQuantum(policy *config.PostQuantum, spread config.SpreadMode) {
	old := d.postQuantum.Load()
	if policy != nil {
		d.postQuantum.Store(uint32(*policy))
	}
	if d.postQuantum.Load() == old && d.spreading.Load().mode == spread {
		return
	}
	for p := range d.peers.locked() {
		p.quantum.updatePolicy()
	}
}
