// SPDX-License-Identifier: Apache-2.0

// Package view shows what an interface does right now. Two samples of counters make a Frame: rates, shares and how evenly
// the work lies on peers, lanes, NIC queues and cores. Render draws a frame as text. The package is pure: package
// view/machine reads the counters of the machine, view/live is the terminal, view/page the web page.
package view

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/device"
)

// Sample is what an interface has counted, and the machine around it, at one moment. It holds no secrets.
type Sample struct {
	At         time.Time
	Interface  string
	PublicKey  string // base64; empty without an identity
	ListenPort uint16
	Peers      []PeerCounters
	Stats      device.Stats
	Machine    Machine
}

// PeerCounters is what one peer is and has carried.
type PeerCounters struct {
	PublicKey     string // base64
	Endpoint      string // empty when unknown
	LastHandshake time.Time
	RxBytes       uint64 // of WireGuard messages, as wg(8) counts
	TxBytes       uint64
	Spread        config.PeerSpread
}

// Machine is what the host's own counters say. What cannot be read is not there.
type Machine struct {
	Cores  []CoreCounters
	Queues []QueueCounters
}

// CoreCounters are the times of one CPU in the unit of /proc/stat, and the packets' share of its interrupts.
type CoreCounters struct {
	CPU     int
	Busy    uint64 // with anything, softirqs too
	SoftIRQ uint64
	Total   uint64
	NetRx   uint64 // softirqs NET_RX raised (/proc/softirqs)
}

// QueueCounters are those of one queue of a NIC that carries the tunnel.
type QueueCounters struct {
	Device     string
	Queue      int
	Rx, Tx     Counted
	Interrupts map[int]uint64 // by CPU; nil when not known
}

// Counted is what a queue has carried in one direction.
type Counted struct {
	Packets, Bytes uint64
	Known          bool // Packets is; Bytes may be 0 where a driver does not count them
}

// SampleOf makes a sample of what a device says of itself. Keys other than public ones are left out.
func SampleOf(status *config.Status, stats device.Stats, machine Machine, now time.Time) Sample {
	s := Sample{
		At: now, Interface: status.Name, ListenPort: status.ListenPort, Stats: stats, Machine: machine,
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
		s.Peers[i].Spread = stats.Spread.Peers[s.Peers[i].PublicKey]
		if p.Endpoint.AddrPort.IsValid() {
			s.Peers[i].Endpoint = p.Endpoint.AddrPort.String()
		}
	}
	return s
}
