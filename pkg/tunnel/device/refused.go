// SPDX-License-Identifier: Apache-2.0

package device

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
)

// refusal is why a handshake message was refused, and the public key of its sender if that is known (config.PeerHandshake).
type refusal struct {
	reason config.Refusal
	key    string
}

// refuseStranger rejects a handshake message of an unknown sender, and notes that at the peers that have its address as their endpoint.
// key is that of logRefusal. The caller holds no lock.
func (d *Device) refuseStranger(reason drop.Reason, from underlay.Endpoint, key noise.PublicKey) drop.Reason {
	if d.refusals.noted.Allow(d.clock(), time.Minute) { // the search takes time, and anybody can send such messages
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

// refusals bounds the log messages about rejected handshakes, since anybody can send those.
type refusals struct {
	rate       pace.Rate
	noted      pace.Rate     // searches for the peer of an endpoint
	suppressed atomic.Uint64 // rejected without a log message since the last one
}

// logRefusal logs a rejected handshake message, at a limited rate, and returns the reason. key is the sender's public key,
// which may not be authentic; zero if unknown.
func (d *Device) logRefusal(reason drop.Reason, from underlay.Endpoint, key noise.PublicKey) drop.Reason {
	if !d.refusals.rate.Allow(d.clock(), time.Minute) {
		d.refusals.suppressed.Add(1)
		return reason
	}
	log := d.log
	if !key.IsZero() {
		log = log.With("peer", key)
	}
	if n := d.refusals.suppressed.Swap(0); n > 0 {
		log = log.With("suppressed", n)
	}
	log.Info("handshake message refused and dropped", "reason", reason.String(), "endpoint", from.Dst)
	return reason
}
