// SPDX-License-Identifier: Apache-2.0

package device

import (
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// SessionEndpoint is the endpoint of a peer that has a session. It holds no secret.
type SessionEndpoint struct {
	PublicKey     noise.PublicKey `json:"public_key"`
	Endpoint      netip.AddrPort  `json:"endpoint"`
	LastHandshake time.Time       `json:"last_handshake"`
}

// SessionEndpoints returns the device's public key and the endpoints of the peers that have a session, for Config.Recall of a process that
// replaces this one after a crash. ok is false if the device has no key or has ended. It is safe for concurrent use.
func (d *Device) SessionEndpoints() (own noise.PublicKey, list []SessionEndpoint, ok bool) {
	id := d.identity.Load()
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if id == nil || closed {
		return own, nil, false
	}
	d.peersMu.RLock()
	defer d.peersMu.RUnlock()
	for key, p := range d.peers {
		p.mu.Lock()
		at, completed := p.engine.Endpoint.Load(), p.handshake.completedAt
		if at != nil && at.Scope == 0 && p.hasSession() { // the number of a scope may change
			list = append(list, SessionEndpoint{key, at.Dst, completed})
		}
		p.mu.Unlock()
	}
	return id.Public(), list, true
}

// recall gives a new peer what Config.Recall knows: the endpoint, unless one is configured. start then renews the session that the process
// before had. The caller holds Device.mu.
func (p *Peer) recall() {
	id := p.dev.identity.Load()
	if p.dev.cfg.Recall == nil || id == nil {
		return
	}
	at, ok := p.dev.cfg.Recall(id.Public(), p.key)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handover.lostAt = p.dev.clock()
	if p.engine.Endpoint.Load() == nil {
		p.configureEndpoint(&underlay.Endpoint{Dst: at})
	}
}
