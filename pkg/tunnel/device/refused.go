// SPDX-License-Identifier: Apache-2.0

package device

import (
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// refusal is why a handshake message was refused, and the public key of its sender if that is known (config.PeerHandshake).
type refusal struct {
	reason config.Refusal
	key    string
}

// refuseStranger rejects a handshake message of an unknown sender, and notes that at the peers that have its address as their endpoint.
// key is that of logRefusal. The caller holds no lock.
func (d *Device) refuseStranger(reason drop.Reason, from underlay.Endpoint, key noise.PublicKey) drop.Reason {
	if d.refusals.noted.allow(d.clock(), time.Minute) { // the search takes time, and anybody can send such messages
		r := refusal{reason: config.RefusedMAC1}
		if !key.IsZero() {
			r = refusal{config.RefusedKey, key.Base64()}
		}
		d.noteRefusal(from.Dst, r)
	}
	return d.logRefusal(reason, from, key)
}

// noteRefusal stores a refusal at the peers with that endpoint.
func (d *Device) noteRefusal(from netip.AddrPort, r refusal) {
	d.peersMu.RLock()
	defer d.peersMu.RUnlock()
	for _, p := range d.peers {
		if to := p.engine.Endpoint.Load(); to == nil || to.Dst != from {
			continue
		}
		p.mu.Lock()
		p.handshake.refused = r
		p.mu.Unlock()
	}
}
