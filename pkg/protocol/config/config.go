// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Device is a change to a device. A nil field stays unchanged. The change is applied as a whole or not at all.
type Device struct {
	PrivateKey *noise.PrivateKey // the zero key removes the identity
	ListenPort *uint16           // 0 lets the kernel choose
	FwMark     *uint32           // 0 removes the mark
	Settings
	ReplacePeers bool   // remove all peers first
	Peers        []Peer // in the order given
}

// Peer is a change to one peer.
type Peer struct {
	PublicKey    noise.PublicKey
	Name         *string // for people, valid for CheckName; empty removes it
	Remove       bool
	UpdateOnly   bool                // do nothing if the peer does not exist
	PresharedKey *noise.PresharedKey // the zero key removes it
	Endpoint     *Endpoint
	EndpointName string  // from which Endpoint was resolved, valid for CheckEndpointName; empty for none
	Keepalive    *uint16 // seconds; 0 turns persistent keepalive off
	PostQuantum  *PostQuantum
	// ForgetPostQuantum makes sessions without post-quantum keys no downgrade any more.
	ForgetPostQuantum bool
	ReplaceAllowedIPs bool
	AllowedIPs        []AllowedIP // in the order given
}

// AllowedIP adds a prefix to a peer, or removes it. Bits beyond the prefix length are zero.
type AllowedIP struct {
	Prefix netip.Prefix
	Remove bool
}

// Endpoint is a peer's address with the zone of a link-local IPv6 address as an interface index.
type Endpoint struct {
	AddrPort netip.AddrPort
	Scope    uint32
}

// Status is a snapshot of a device.
type Status struct {
	Name       string
	PrivateKey noise.PrivateKey // zero when there is none
	PublicKey  noise.PublicKey
	ListenPort uint16
	FwMark     uint32
	Peers      []PeerStatus

	// Not part of WireGuard's status. The UAPI carries these fields separately, as a SpreadReport.
	Spread      SpreadMode
	SpreadPorts spread.Ports
	Spray       Spray
	Lanes       int // 0 when not known
}

// PeerStatus is a snapshot of a peer.
type PeerStatus struct {
	PublicKey     noise.PublicKey
	Name          string             // for people, empty when there is none or it is unknown: the control socket reports it separately, as a NameReport
	PresharedKey  noise.PresharedKey // zero when there is none
	Endpoint      Endpoint           // AddrPort invalid when unknown
	EndpointName  string             // from which it was resolved; like Name
	LastHandshake time.Time          // zero when never
	RxBytes       uint64
	TxBytes       uint64
	Keepalive     uint16 // seconds, 0 for off
	AllowedIPs    []netip.Prefix
	Spread        PeerSpread
	PathMTU       PathMTU // of the zero value if unknown: the control socket reports it separately, as a PathMTUReport
	// Handshake is the zero value if unknown: the control socket reports it separately, as a HandshakeReport.
	Handshake PeerHandshake
	// PostQuantum is the zero value if unknown: the control socket reports it separately, as a PostQuantumReport.
	PostQuantum PeerPostQuantum
	Packets     PeerPackets // zero when unknown: the control socket does not report them
}

// PeerPackets counts WireGuard messages from and to a peer, and the dropped messages among them.
type PeerPackets struct{ Rx, Tx, RxDrops, TxDrops uint64 }
