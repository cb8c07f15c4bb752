// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// Snapshot is the state and the counters of one interface at one moment. It holds no secrets.
type Snapshot struct {
	At         time.Time
	Interface  string
	PublicKey  string // base64; empty without a private key
	ListenPort uint16
	Peers      []Peer
	Stats      device.Stats
}

// Peer is the state and the counters of one peer at one moment.
type Peer struct {
	PublicKey     string // base64
	Name          string // empty for none
	Endpoint      string // empty when unknown
	AllowedIPs    []netip.Prefix
	LastHandshake time.Time // zero when never
	Keepalive     uint16    // seconds, 0 for off
	RxBytes       uint64    // of WireGuard messages, as wg(8) counts
	TxBytes       uint64
	Packets       config.PeerPackets
	SpreadPorts   int // source ports over which its flows are spread; 0 if they are not
	BlockedPorts  int // of which the path does not admit so many
	PathMTU       config.PathMTU
	Handshake     config.PeerHandshake
}

// Source returns a snapshot. It is called once per scrape; scrapes may run concurrently.
type Source func() Snapshot

// Device is the source of FromDevice; *device.Device implements it.
type Device interface {
	Status() config.Status
	Stats() any // device.Stats
	StuckLanes() []string
}

// FromDevice returns the Source for a device. Its snapshots hold no key but public ones.
func FromDevice(d Device, now func() time.Time) Source {
	return func() Snapshot {
		status := d.Status()
		stats, _ := d.Stats().(device.Stats)
		s := Snapshot{
			At: now(), Interface: label(status.Name), ListenPort: status.ListenPort, Stats: stats,
			Peers: make([]Peer, len(status.Peers)),
		}
		if !status.PublicKey.IsZero() {
			s.PublicKey = status.PublicKey.Base64()
		}
		for i := range status.Peers {
			s.Peers[i] = fromPeer(&status.Peers[i])
		}
		return s
	}
}

func fromPeer(p *config.PeerStatus) Peer {
	out := Peer{
		PublicKey: p.PublicKey.Base64(), Name: p.Name, AllowedIPs: p.AllowedIPs, LastHandshake: p.LastHandshake, Keepalive: p.Keepalive,
		RxBytes: p.RxBytes, TxBytes: p.TxBytes, Packets: p.Packets, SpreadPorts: p.Spread.Ports, BlockedPorts: len(p.Spread.Blocked), PathMTU: p.PathMTU, Handshake: p.Handshake,
	}
	if p.Endpoint.AddrPort.IsValid() {
		out.Endpoint = p.Endpoint.AddrPort.String()
	}
	return out
}

// Reasons why a device is not ready.
var (
	errDown  = errors.New("the interface is down, or its UDP port could not be opened")
	errNoKey = errors.New("the interface has no private key")
)

// Ready returns why a device carries no packets: its interface is down, or it has no private key. It returns nil if the device
// is ready.
func Ready(d Device) error {
	stats, _ := d.Stats().(device.Stats)
	switch {
	case !stats.Up:
		return errDown
	case d.Status().PublicKey.IsZero():
		return errNoKey
	}
	return nil
}

// Alive returns an error while lanes of a device make no progress. Only another process helps then.
func Alive(d Device) error {
	if lanes := d.StuckLanes(); len(lanes) > 0 {
		return fmt.Errorf("lanes make no progress: %s", strings.Join(lanes, ", "))
	}
	return nil
}

// label makes the name of a device a valid label: such a name may hold bytes that are not UTF-8.
func label(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }
