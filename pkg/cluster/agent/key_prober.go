// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// keyProber finds out which peers accept the node's next key. It starts a handshake with that key from a port of its own: a
// peer answers only if it knows the key (WireGuard paper, section 5.4.2). It does not complete the handshake, so that no
// session changes.
type keyProber struct {
	identity   *noise.Identity
	probes     map[noise.PublicKey]*keyProbe
	sent       map[uint32]*keyProbe // by sender index of the last message
	lastSentAt time.Time            // when the last probe was sent
}

// keyProbe is a handshake that waits for its response.
type keyProbe struct {
	jar       *noise.CookieJar
	initiator *noise.Initiator
	clock     noise.Clock
	psk       noise.PresharedKey
	sender    uint32 // sender index of the last message
	accepted  bool
}

const (
	// probeTimeout is how long a round waits for responses.
	probeTimeout = 300 * time.Millisecond
	// maxHandshakeAge is the age up to which a peer's last handshake counts: older peers have no session.
	maxHandshakeAge = time.Duration(session.RejectAfterTime)
	// probeSettleTime is the pause between a probe and a real handshake. A peer rejects a second handshake of one key with the
	// same timestamp, and timestamps have a resolution of 16 ms.
	probeSettleTime = 100 * time.Millisecond
)

func newProber(key noise.PrivateKey) (*keyProber, error) {
	id, err := noise.NewIdentity(key)
	if err != nil {
		return nil, fmt.Errorf("preparing the next key: %w", err)
	}
	return &keyProber{identity: id, probes: map[noise.PublicKey]*keyProbe{}, sent: map[uint32]*keyProbe{}}, nil
}

// countUnconfirmed probes the peers that have a session and have not accepted the key yet. It returns how many still have not.
func (p *keyProber) countUnconfirmed(peers []config.PeerStatus) (n int, err error) {
	pending := map[noise.PublicKey]netip.AddrPort{} // by key: several peers may share an address
	for i := range peers {
		peer := &peers[i]
		if len(peer.AllowedIPs) == 0 || time.Since(peer.LastHandshake) > maxHandshakeAge || !peer.Endpoint.AddrPort.IsValid() {
			continue
		}
		if q := p.probes[peer.PublicKey]; q == nil || !q.accepted {
			pending[peer.PublicKey] = peer.Endpoint.AddrPort
			p.prepare(peer)
		}
	}
	if len(pending) == 0 {
		return 0, nil
	}
	c, err := net.ListenUDP("udp", nil)
	if err != nil {
		return len(pending), fmt.Errorf("probing peers for the next key: %w", err)
	}
	defer c.Close()
	for key, at := range pending {
		p.send(c, at, key)
	}
	return len(pending) - p.receiveAll(c, len(pending)), nil
}

// prepare creates the probe of a peer.
func (p *keyProber) prepare(peer *config.PeerStatus) {
	if p.probes[peer.PublicKey] != nil {
		return
	}
	remote, err := noise.NewRemote(p.identity, peer.PublicKey)
	if err != nil {
		p.probes[peer.PublicKey] = &keyProbe{accepted: true} // no handshake with this public key is possible: do not wait for it
		return
	}
	p.probes[peer.PublicKey] = &keyProbe{
		jar: noise.NewCookieJar(remote), initiator: noise.NewInitiator(remote), psk: peer.PresharedKey,
	}
}

// send sends a handshake initiation to a peer. It ignores errors: the peer is probed again in the next round.
func (p *keyProber) send(c *net.UDPConn, at netip.AddrPort, key noise.PublicKey) {
	q := p.probes[key]
	if q.initiator == nil {
		return
	}
	var msg wire.Initiation
	sender := mathrand.Uint32()
	delete(p.sent, q.sender)
	q.sender, p.sent[sender] = sender, q
	err := q.initiator.CreateInitiation(&msg, sender, q.clock.Now(time.Now()), rand.Reader)
	if err == nil {
		err = q.jar.AddMACs(msg[:], time.Now().UnixNano())
	}
	if err == nil {
		_, _ = c.WriteToUDPAddrPort(msg[:], at)
		p.lastSentAt = time.Now() // after each one: with many peers, the first was sent a while ago
	}
}

// receiveAll reads responses until the expected number has come or the time is over. It returns how many peers accepted the key.
func (p *keyProber) receiveAll(c *net.UDPConn, expected int) (accepted int) {
	if c.SetReadDeadline(time.Now().Add(probeTimeout)) != nil {
		return 0
	}
	b := make([]byte, 2048)
	for accepted < expected {
		n, _, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return accepted
		}
		if p.handleReply(b[:n]) {
			accepted++
		}
	}
	return accepted
}

// handleReply reports whether a message is a peer's valid response. It keeps a cookie for the next round.
func (p *keyProber) handleReply(b []byte) bool {
	kind, reason := wire.Classify(b)
	if reason != drop.None || kind != wire.TypeCookieReply && kind != wire.TypeResponse {
		return false
	}
	q := p.sent[wire.ReceiverIndex(b)]
	switch {
	case q == nil || q.accepted:
		return false
	case kind == wire.TypeCookieReply:
		q.jar.ConsumeReply(b, time.Now().UnixNano())
		return false
	}
	keys, reason := q.initiator.ConsumeResponse(b, &q.psk)
	keys.Wipe()
	q.accepted = reason == drop.None
	return q.accepted
}
