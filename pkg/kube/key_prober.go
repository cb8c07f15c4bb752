// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/noise"
	"github.com/ropewalk/ropewalk/pkg/session"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

// keyProber finds out which peers accept a key that is not in use: it begins a handshake with it, from a port of its own, and
// they answer only if they know it (WireGuard paper, section 5.4.2). The handshake is not completed, so nothing else changes.
type keyProber struct {
	identity   *noise.Identity
	probes     map[noise.PublicKey]*keyProbe
	sent       map[uint32]*keyProbe // by the index of the last message
	lastSentAt time.Time            // when somebody was asked
}

// keyProbe is a handshake that waits for its response.
type keyProbe struct {
	jar       *noise.CookieJar
	initiator *noise.Initiator
	clock     noise.Clock
	psk       noise.PresharedKey
	sender    uint32 // index of the last message
	accepted  bool
}

const (
	// probeTimeout is how long a round waits for answers.
	probeTimeout = 300 * time.Millisecond
	// maxHandshakeAge is how old the handshake of a peer may be that counts.
	maxHandshakeAge = time.Duration(session.RejectAfterTime)
	// probeSettleTime is how long a peer takes no other handshake from the same key for one of the same time: timestamps have 16 ms.
	probeSettleTime = 100 * time.Millisecond
)

func newProber(key noise.PrivateKey) (*keyProber, error) {
	id, err := noise.NewIdentity(key)
	if err != nil {
		return nil, fmt.Errorf("preparing the next key: %w", err)
	}
	return &keyProber{identity: id, probes: map[noise.PublicKey]*keyProbe{}, sent: map[uint32]*keyProbe{}}, nil
}

// countUnconfirmed asks the peers that there is a session with and that have not answered yet, and returns how many still have not.
func (p *keyProber) countUnconfirmed(st config.Status) (n int, err error) {
	pending := map[noise.PublicKey]netip.AddrPort{} // several may be behind one address
	for i := range st.Peers {
		peer := &st.Peers[i]
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
		return len(pending), fmt.Errorf("asking whether peers accept the next key: %w", err)
	}
	defer c.Close()
	for key, at := range pending {
		p.send(c, at, key)
	}
	return len(pending) - p.receiveAll(c, len(pending)), nil
}

// keyProbe prepares one for a peer.
func (p *keyProber) prepare(peer *config.PeerStatus) {
	if p.probes[peer.PublicKey] != nil {
		return
	}
	remote, err := noise.NewRemote(p.identity, peer.PublicKey)
	if err != nil {
		p.probes[peer.PublicKey] = &keyProbe{accepted: true} // a key that no handshake is possible with keeps nobody
		return
	}
	p.probes[peer.PublicKey] = &keyProbe{
		jar: noise.NewCookieJar(remote), initiator: noise.NewInitiator(remote), psk: peer.PresharedKey,
	}
}

// send sends a peer the first message. What is not sent is not answered.
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
		p.lastSentAt = time.Now() // of each: with many peers, the first was asked a while ago
	}
}

// receiveAll takes answers until all have come or it is time, and returns how many peers accept.
func (p *keyProber) receiveAll(c *net.UDPConn, all int) (accepted int) {
	if c.SetReadDeadline(time.Now().Add(probeTimeout)) != nil {
		return 0
	}
	b := make([]byte, 2048)
	for accepted < all {
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

// handleReply tells whether a message is a peer's response. A cookie is kept for the next round.
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
