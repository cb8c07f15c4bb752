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

// prober finds out which peers accept a key that is not in use: it begins a handshake with it, from a port of its own, and
// they answer only if they know it (WireGuard paper, section 5.4.2). The handshake is not completed, so nothing else changes.
type prober struct {
	identity *noise.Identity
	asked    map[noise.PublicKey]*question
	sent     map[uint32]*question // by the index of the last message
	last     time.Time            // when somebody was asked
}

// question is a handshake that waits for its response.
type question struct {
	jar       *noise.CookieJar
	initiator *noise.Initiator
	clock     noise.Clock
	psk       noise.PresharedKey
	sender    uint32 // index of the last message
	accepted  bool
}

const (
	// answerWithin is how long a round waits for answers.
	answerWithin = 300 * time.Millisecond
	// liveFor is how old the handshake of a peer may be that counts.
	liveFor = time.Duration(session.RejectAfterTime)
	// afterProbe is how long a peer takes no other handshake from the same key for one of the same time: timestamps have 16 ms.
	afterProbe = 100 * time.Millisecond
)

func newProber(key noise.PrivateKey) (*prober, error) {
	id, err := noise.NewIdentity(key)
	if err != nil {
		return nil, fmt.Errorf("preparing the next key: %w", err)
	}
	return &prober{identity: id, asked: map[noise.PublicKey]*question{}, sent: map[uint32]*question{}}, nil
}

// waiting asks the peers that there is a session with and that have not answered yet, and returns how many still have not.
func (p *prober) waiting(st config.Status) (n int, err error) {
	pending := map[noise.PublicKey]netip.AddrPort{} // several may be behind one address
	for i := range st.Peers {
		peer := &st.Peers[i]
		if len(peer.AllowedIPs) == 0 || time.Since(peer.LastHandshake) > liveFor || !peer.Endpoint.AddrPort.IsValid() {
			continue
		}
		if q := p.asked[peer.PublicKey]; q == nil || !q.accepted {
			pending[peer.PublicKey] = peer.Endpoint.AddrPort
			p.question(peer)
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
		p.ask(c, at, key)
	}
	return len(pending) - p.hear(c, len(pending)), nil
}

// question prepares one for a peer.
func (p *prober) question(peer *config.PeerStatus) {
	if p.asked[peer.PublicKey] != nil {
		return
	}
	remote, err := noise.NewRemote(p.identity, peer.PublicKey)
	if err != nil {
		p.asked[peer.PublicKey] = &question{accepted: true} // a key that no handshake is possible with keeps nobody
		return
	}
	p.asked[peer.PublicKey] = &question{
		jar: noise.NewCookieJar(remote), initiator: noise.NewInitiator(remote), psk: peer.PresharedKey,
	}
}

// ask sends a peer the first message. What is not sent is not answered.
func (p *prober) ask(c *net.UDPConn, at netip.AddrPort, key noise.PublicKey) {
	q := p.asked[key]
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
		p.last = time.Now() // of each: with many peers, the first was asked a while ago
	}
}

// hear takes answers until all have come or it is time, and returns how many peers accept.
func (p *prober) hear(c *net.UDPConn, all int) (accepted int) {
	if c.SetReadDeadline(time.Now().Add(answerWithin)) != nil {
		return 0
	}
	b := make([]byte, 2048)
	for accepted < all {
		n, _, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return accepted
		}
		if p.answered(b[:n]) {
			accepted++
		}
	}
	return accepted
}

// answered tells whether a message is a peer's response. A cookie is kept for the next round.
func (p *prober) answered(b []byte) bool {
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
