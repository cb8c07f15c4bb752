// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"math"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// SlowPath handles the rare events of a Peer. Lanes call it at most once per train, and only in exceptional cases. Its
// methods must wait neither for a system call nor for the slow path's cryptography, and several lanes may call them at once.
type SlowPath interface {
	// Stage takes a train (see tun.Queue) of the given number of packets, for which there is no usable session. train is
	// valid only during the call. The slow path starts a handshake, and sends the train before it changes Peer.Current. If there is a
	// session by now, Stage takes nothing and returns the key pair to send with.
	Stage(train []byte, packets int) *session.Keypair
	// Confirm reports that the peer has sent with the unconfirmed key pair, keys: the slow path may send with it now.
	Confirm(keys *session.Keypair)
	// Rekey reports that a new handshake is due.
	Rekey()
	// Roam reports an authenticated packet from another endpoint than the current one.
	Roam(from underlay.Endpoint)
	// SendBufferFull reports that data to the peer waits, because a send buffer is full. Other peers may share the buffer, so the slow
	// path may give the peer another SendGroup.
	SendBufferFull()
	// TooBig reports that the host refused to send a message of size bytes to the peer because of its size.
	TooBig(size int)
	// OnHeard reports that Peer.Heard has become true.
	OnHeard()
	// ProbeDue reports that as many messages have left from a source as Spread.WakeAfter has set.
	ProbeDue()
	// Hello takes a decrypted control message (wire.IsControl): a hello or a probe. plain is valid only during the call.
	Hello(plain []byte, from underlay.Endpoint) drop.Reason
	// ExchangePart takes a part of a post-quantum exchange (wire.IsKEMPart), which has arrived under keys. plain is valid only during the call.
	ExchangePart(plain []byte, keys *session.Keypair) drop.Reason
}

// Session is the target of a receiver index: a peer, and the keys once the handshake is complete.
type Session struct {
	Peer *Peer
	Keys atomic.Pointer[session.Keypair]
}

// Peer is the state of a peer that lanes use. It is safe for concurrent use.
type Peer struct {
	SlowPath SlowPath
	// Current is the key pair to send with; nil without a session, or if it is restricted (session.Keypair.Restrict).
	Current atomic.Pointer[session.Keypair]
	// Unconfirmed is a responder's new key pair until the initiator has used it.
	Unconfirmed atomic.Pointer[session.Keypair]
	// Endpoint is the destination; nil while unknown. The pointed-to value never changes.
	Endpoint atomic.Pointer[underlay.Endpoint]
	Activity peer.Activity
	// Spread selects the source ports of data messages; nil for no spread to this peer.
	Spread atomic.Pointer[Spread]
	// Gathered are the source ports, besides the listen port, from which the peer may send without roaming; nil for none.
	Gathered atomic.Pointer[spread.Ports]
	// SendsHellos reports whether the peer's hellos name its listen port.
	SendsHellos atomic.Bool
	// Heard reports whether an authentic message has come from one of the Gathered ports.
	Heard atomic.Bool
	// SendGroup is the send group (underlay.Port.OpenGroup) of data messages to the peer.
	SendGroup atomic.Int32
	pathMTU   atomic.Int32 // see SetPathMTU; noPathMTU for none
	ports     atomic.Pointer[portCounts]
	Number    uint16 // in the flow tables, not 0

	Slow    traffic                       // outside the lanes, such as handshakes
	traffic []atomic.Pointer[laneTraffic] // of each lane; nil until the lane sends or receives for the peer
}

// traffic counts a peer's WireGuard messages: bytes, messages, and drops.
type traffic struct {
	Rx, Tx               atomic.Uint64
	RxPackets, TxPackets atomic.Uint64
	RxDrops, TxDrops     atomic.Uint64
	Enqueued             atomic.Uint64 // send.sender.flushes when the lane last enqueued a packet for the peer, to know whether any waits now
	Group                int           // the send group that the lane now uses for the peer (send.sender.noteGroup); not for other goroutines
}

// laneTraffic is the traffic of one lane, on cache lines of its own.
type laneTraffic struct {
	traffic
	_ [72]byte
}

// NewPeer returns a peer of the lanes with its slow path. Lanes find it only once routes and sessions contain it.
func (s *Shared) NewPeer(slow SlowPath) *Peer {
	number := uint16(s.peers.Add(1)%math.MaxUint16) + 1
	p := &Peer{SlowPath: slow, Number: number, traffic: make([]atomic.Pointer[laneTraffic], s.Lanes)}
	p.SetPathMTU(0)
	return p
}

func (p *Peer) Group() int { return int(p.SendGroup.Load()) }

// Traffic returns the bytes of WireGuard messages received from and sent to the peer.
func (p *Peer) Traffic() (rx, tx uint64) {
	rx, tx = p.Slow.Rx.Load(), p.Slow.Tx.Load()
	for i := range p.traffic {
		if t := p.traffic[i].Load(); t != nil {
			rx += t.Rx.Load()
			tx += t.Tx.Load()
		}
	}
	return rx, tx
}

// Data returns the bytes of WireGuard messages that lanes have sent to the peer.
func (p *Peer) Data() (bytes uint64) {
	_, all := p.Traffic()
	return all - p.Slow.Tx.Load()
}

// PeerPackets counts WireGuard messages from a peer (Rx) and to it (Tx). RxDrops counts messages of its sessions that
// were rejected, and messages whose inner packet was rejected. TxDrops counts messages and packets to the peer that could not be sent.
type PeerPackets struct {
	Rx      uint64 `json:"rx"`
	Tx      uint64 `json:"tx"`
	RxDrops uint64 `json:"rx_drops"`
	TxDrops uint64 `json:"tx_drops"`
}

// Packets returns how many messages were received from and sent to the peer.
func (p *Peer) Packets() PeerPackets {
	sum := p.Slow.packets()
	for i := range p.traffic {
		if t := p.traffic[i].Load(); t != nil {
			n := t.packets()
			sum = PeerPackets{sum.Rx + n.Rx, sum.Tx + n.Tx, sum.RxDrops + n.RxDrops, sum.TxDrops + n.TxDrops}
		}
	}
	return sum
}

func (t *traffic) packets() PeerPackets {
	return PeerPackets{t.RxPackets.Load(), t.TxPackets.Load(), t.RxDrops.Load(), t.TxDrops.Load()}
}

// TrafficOf returns the counters of lane i, or the slow path's if there is no such lane.
func (p *Peer) TrafficOf(i int) *traffic {
	if i >= len(p.traffic) {
		return &p.Slow
	}
	t := p.traffic[i].Load()
	if t == nil { // the lane's other direction may do the same now
		p.traffic[i].CompareAndSwap(nil, new(laneTraffic))
		t = p.traffic[i].Load()
	}
	return &t.traffic
}

// CountHandshake counts one handshake message, which bypasses the lanes: rx or tx is its size in bytes, and the other is 0.
func (p *Peer) CountHandshake(rx, tx int) {
	p.Slow.Rx.Add(uint64(rx))
	p.Slow.Tx.Add(uint64(tx))
	p.Slow.RxPackets.Add(uint64(min(rx, 1)))
	p.Slow.TxPackets.Add(uint64(min(tx, 1)))
}

// RekeyDue reports whether the session of keys is to be replaced, because of its age or the number of its messages.
func RekeyDue(keys *session.Keypair, now int64, receiving bool) bool {
	return peer.RekeyDue(now, keys.Created(), keys.Initiator(), keys.Sent(), receiving)
}

// noPathMTU is the limit of a peer without one: no packet is larger.
const noPathMTU = math.MaxInt32

// SetPathMTU sets the size in bytes of the largest inner packet that fits in one message to the peer; 0 for no limit. Larger
// IPv4 packets without DF are fragmented. All others are dropped, and their senders get an ICMP error that says the size.
// Padding does not exceed the limit. It is at least IPv4's minimum, and IPv6 packets of up to 1280 bytes are always sent:
// an IPv6 link must carry them (RFC 8200, section 5). Any goroutine may call it at any time.
func (p *Peer) SetPathMTU(limit int) {
	if limit <= 0 {
		limit = noPathMTU
	}
	p.pathMTU.Store(int32(min(max(limit, packet.IPv4MinMTU), noPathMTU)))
}

// PathLimit returns the size in bytes of the largest inner packet to the peer.
func (p *Peer) PathLimit() int { return int(p.pathMTU.Load()) }

// MarkHeard sets Heard, and calls SlowPath.OnHeard if it was not set.
func (p *Peer) MarkHeard() {
	if !p.Heard.Load() && p.Heard.CompareAndSwap(false, true) {
		p.SlowPath.OnHeard()
	}
}
