// SPDX-License-Identifier: Apache-2.0

package top

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// Sample holds the counters of an interface and of the host at one moment. It holds no secrets.
type Sample struct {
	At         time.Time
	Interface  string
	PublicKey  string // base64; empty without an identity
	ListenPort uint16
	Peers      []PeerCounters
	Stats      device.Stats
	Host       HostCounters
	Flows      *device.FlowReport // nil unless they are shown: asking for them makes the daemon count them
}

// PeerCounters holds identity and counters of one peer.
type PeerCounters struct {
	PublicKey     string // base64
	Name          string // for people, empty for none
	Endpoint      string // empty when unknown
	LastHandshake time.Time
	RxBytes       uint64 // WireGuard message bytes, as wg(8) counts
	TxBytes       uint64
	Spread        config.PeerSpread
	PostQuantum   config.PeerPostQuantum // zero if the policy is off
}

// Host holds the host's own counters. Unreadable counters are missing.
type HostCounters struct {
	Cores  []CoreCounters
	Queues []QueueCounters
}

// CoreCounters are the CPU times of one CPU in units of /proc/stat, and its NET_RX softirqs.
type CoreCounters struct {
	CPU     int
	Busy    uint64 // all non-idle time, including softirqs
	SoftIRQ uint64
	Total   uint64
	NetRx   uint64 // NET_RX softirqs (/proc/softirqs)
}

// QueueCounters are the counters of one queue of a NIC that carries the tunnel.
type QueueCounters struct {
	Device     string
	Queue      int
	Rx, Tx     PacketCounters
	Interrupts map[int]uint64 // by CPU; nil if unknown
}

// PacketCounters holds the counters of one direction of a queue.
type PacketCounters struct {
	Packets, Bytes uint64
	Known          bool // Packets is valid; Bytes is 0 if the driver does not count bytes
}

// SampleOf makes a sample from a device's status and statistics. It copies no private or preshared keys.
func SampleOf(status *config.Status, stats device.Stats, host HostCounters, now time.Time) Sample {
	s := Sample{
		At: now, Interface: status.Name, ListenPort: status.ListenPort, Stats: stats, Host: host,
		Peers: make([]PeerCounters, len(status.Peers)),
	}
	if !status.PublicKey.IsZero() {
		s.PublicKey = status.PublicKey.Base64()
	}
	for i := range status.Peers {
		p := &status.Peers[i]
		s.Peers[i] = PeerCounters{
			PublicKey: p.PublicKey.Base64(), LastHandshake: p.LastHandshake, RxBytes: p.RxBytes, TxBytes: p.TxBytes,
		}
		s.Peers[i].Name = stats.Names[s.Peers[i].PublicKey].Name
		s.Peers[i].Spread = stats.Spread.Peers[s.Peers[i].PublicKey]
		s.Peers[i].PostQuantum = stats.PostQuantum.Peers[s.Peers[i].PublicKey]
		if p.Endpoint.AddrPort.IsValid() {
			s.Peers[i].Endpoint = p.Endpoint.AddrPort.String()
		}
	}
	return s
}
