// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/peer"
	"github.com/ropewalk/ropewalk/pkg/session"
	"github.com/ropewalk/ropewalk/pkg/spread"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// SlowPath is the slow side of a Peer. Lanes call it at most once per train, and only when something is out of the
// ordinary. Its methods must not block for long and may be called from several lanes at once.
type SlowPath interface {
	// Stage takes an element (see tun.Queue) of so many packets for which there is no usable session; element is valid
	// only during the call. The owner starts a handshake, or transmits at once if a session has appeared meanwhile.
	Stage(element []byte, packets int)
	// Confirm says that the peer has used keys, which are the owner's unconfirmed ones: it may send with them now.
	Confirm(keys *session.Keypair)
	// Rekey says that a new handshake is due.
	Rekey()
	// Roam says that an authenticated packet came from another endpoint than the current one.
	Roam(from underlay.Endpoint)
	// MarkHeard says that Peer.Heard has become true.
	OnHeard()
	// SendHello takes a plaintext for which wire.IsHello holds, and which is valid only during the call.
	Hello(plain []byte, from underlay.Endpoint) drop.Reason
}

// Session is what a receiver index leads to: a peer, and the keys once the handshake is complete.
type Session struct {
	Peer *Peer
	Keys atomic.Pointer[session.Keypair]
}

// Peer is what lanes know of a peer. Everything in it is safe for concurrent use.
type Peer struct {
	SlowPath SlowPath
	// Current is the key pair to send with; nil while there is none.
	Current atomic.Pointer[session.Keypair]
	// Unconfirmed is a responder's new key pair until the initiator has used it.
	Unconfirmed atomic.Pointer[session.Keypair]
	// Endpoint is where to send; nil while unknown. The pointed-to value never changes.
	Endpoint atomic.Pointer[underlay.Endpoint]
	Activity peer.Activity
	// Spread is how data messages take their source ports; nil for a peer that is not to be spread to.
	Spread atomic.Pointer[Spread]
	// Gathered are the source ports, beside its canonical one, from which the peer's messages come without its having
	// roamed; nil for none.
	Gathered atomic.Pointer[spread.Ports]
	// Heard says that an authentic message has come from one of them.
	Heard atomic.Bool

	slow    traffic                       // away from the lanes
	traffic []atomic.Pointer[laneTraffic] // of each lane, nil until it carries something for the peer
}

// traffic is what was carried for a peer: bytes of WireGuard messages, messages, and those that were dropped.
type traffic struct {
	rx, tx               atomic.Uint64
	rxPackets, txPackets atomic.Uint64
	rxDrops, txDrops     atomic.Uint64
}

// laneTraffic is that of one lane, alone on its cache lines.
type laneTraffic struct {
	traffic
	_ [80]byte
}

// NewPeer returns a peer of e for owner. It is reachable only once Routes and Sessions lead to it.
func (e *Engine) NewPeer(owner SlowPath) *Peer {
	return &Peer{SlowPath: owner, traffic: make([]atomic.Pointer[laneTraffic], len(e.lanes))}
}

// Traffic returns the bytes of WireGuard messages received from and sent to the peer.
func (p *Peer) Traffic() (rx, tx uint64) {
	rx, tx = p.slow.rx.Load(), p.slow.tx.Load()
	for i := range p.traffic {
		if t := p.traffic[i].Load(); t != nil {
			rx += t.rx.Load()
			tx += t.tx.Load()
		}
	}
	return rx, tx
}

// PeerPackets counts WireGuard messages, from a peer (Rx) and to it (Tx). Those dropped are the peer's own: messages of its
// session that were refused, or had something in them that was, and messages to it that were given up, or packets before they
// became such.
type PeerPackets struct {
	Rx      uint64 `json:"rx"`
	Tx      uint64 `json:"tx"`
	RxDrops uint64 `json:"rx_drops"`
	TxDrops uint64 `json:"tx_drops"`
}

// Packets returns how many messages were received from and sent to the peer.
func (p *Peer) Packets() PeerPackets {
	sum := p.slow.packets()
	for i := range p.traffic {
		if t := p.traffic[i].Load(); t != nil {
			n := t.packets()
			sum = PeerPackets{sum.Rx + n.Rx, sum.Tx + n.Tx, sum.RxDrops + n.RxDrops, sum.TxDrops + n.TxDrops}
		}
	}
	return sum
}

func (t *traffic) packets() PeerPackets {
	return PeerPackets{t.rxPackets.Load(), t.txPackets.Load(), t.rxDrops.Load(), t.txDrops.Load()}
}

// trafficOf returns the counters of lane i, those of the slow path if there is no such lane.
func (p *Peer) trafficOf(i int) *traffic {
	if i >= len(p.traffic) {
		return &p.slow
	}
	t := p.traffic[i].Load()
	if t == nil { // the lane's other direction may be here too
		p.traffic[i].CompareAndSwap(nil, new(laneTraffic))
		t = p.traffic[i].Load()
	}
	return &t.traffic
}

// CountHandshake adds one message of a handshake, which did not pass through a lane: its bytes in its direction, and 0 in the other.
func (p *Peer) CountHandshake(rx, tx int) {
	p.slow.rx.Add(uint64(rx))
	p.slow.tx.Add(uint64(tx))
	p.slow.rxPackets.Add(uint64(min(rx, 1)))
	p.slow.txPackets.Add(uint64(min(tx, 1)))
}
