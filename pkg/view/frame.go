// SPDX-License-Identifier: Apache-2.0

package view

import (
	"time"
)

// Frame is what happened between two samples. Its JSON form is what `ropewalk top --json` prints and the page draws.
// Every number in it is finite and none is negative, but for Handshake.
type Frame struct {
	Time       time.Time `json:"time"`
	Seconds    float64   `json:"seconds"` // between the samples; 0 when there was one, and all rates are then 0
	Interface  string    `json:"interface"`
	PublicKey  string    `json:"public_key"`
	ListenPort uint16    `json:"listen_port"`
	Up         bool      `json:"up"`
	Features   []string  `json:"features"` // the way of data messages, offloads and other fast paths in use

	Rx        Flow     `json:"rx"` // inner packets of all lanes, and of what no lane carried
	Tx        Flow     `json:"tx"`
	PeerCount int      `json:"peer_count"`
	Peers     []Peer   `json:"peers"` // in the order of the samples; Sort sorts them
	Lanes     []Lane   `json:"lanes"` // the last is "slow": what no lane carried
	Queues    []Queue  `json:"queues"`
	Cores     []Core   `json:"cores"`
	Drops     []Drop   `json:"drops"` // those that ever happened, the fastest first
	Balance   Balances `json:"balance"`
}

// Flow is what one direction carries. A train is one element at the TUN, of one or more packets; a run is one at the UDP
// socket.
type Flow struct {
	Bytes      uint64     `json:"bytes"` // since the interface is there
	Packets    uint64     `json:"packets"`
	ByteRate   float64    `json:"bytes_per_second"`
	PacketRate float64    `json:"packets_per_second"`
	PerTrain   float64    `json:"packets_per_train"` // 0 when there was none
	PerRun     float64    `json:"messages_per_run"`
	RunSizes   [8]float64 `json:"run_sizes"` // shares of runs of 1, 2, up to 4, 8, 16, 32, 64, and more messages
	CrewRate   float64    `json:"crew_units_per_second"`

	packets, trains, runMessages, runs float64 // between the samples
}

// Peer is one peer.
type Peer struct {
	PublicKey string  `json:"public_key"`
	Endpoint  string  `json:"endpoint,omitempty"`
	RxBytes   uint64  `json:"rx_bytes"`
	TxBytes   uint64  `json:"tx_bytes"`
	RxRate    float64 `json:"rx_bytes_per_second"`
	TxRate    float64 `json:"tx_bytes_per_second"`
	Share     float64 `json:"share"`                      // of the bytes of all peers, both ways, 0 to 1
	Handshake float64 `json:"handshake_age_seconds"`      // since the latest; -1 for never
	Spread    int     `json:"spread_ports"`               // source ports in use towards it; 0 when not spread
	Reason    string  `json:"spread_reason,omitempty"`    // why it is not
	Planned   bool    `json:"spread_ports_planned_by_it"` // the peer chose them
}

// Rate is the peer's traffic, both ways, in bytes per second.
func (p *Peer) Rate() float64 { return p.RxRate + p.TxRate }

// Lane is one lane.
type Lane struct {
	Name     string  `json:"lane"` // 0, 1, … or slow
	Rx       Flow    `json:"rx"`
	Tx       Flow    `json:"tx"`
	Share    float64 `json:"share"` // of the bytes of all lanes, both ways, 0 to 1
	DropRate float64 `json:"drops_per_second"`
}

// Rate is the lane's traffic, both ways, in bytes per second.
func (l *Lane) Rate() float64 { return l.Rx.ByteRate + l.Tx.ByteRate }

// Queue is one queue of a NIC that carries the tunnel. What it carries is the NIC's traffic, the tunnel's or not.
type Queue struct {
	Device     string    `json:"device"`
	Queue      int       `json:"queue"`
	Counts     bool      `json:"counts_packets"` // received; else only interrupts are known
	CountsSent bool      `json:"counts_sent_packets"`
	Rx         QueueFlow `json:"rx"`
	Tx         QueueFlow `json:"tx"`
	Interrupts float64   `json:"interrupts_per_second"`
	Share      float64   `json:"share"` // of what arrives at all queues: packets, or interrupts where they are not counted
	Cores      []Part    `json:"cores"` // where its interrupts were served
}

// QueueFlow is what one queue carries in one direction.
type QueueFlow struct {
	ByteRate   float64 `json:"bytes_per_second"` // 0 where the driver does not count bytes
	PacketRate float64 `json:"packets_per_second"`
}

// Part is the share of one CPU.
type Part struct {
	CPU   int     `json:"cpu"`
	Share float64 `json:"share"` // 0 to 1
}

// Core is one CPU.
type Core struct {
	CPU     int     `json:"cpu"`
	Busy    float64 `json:"busy"`    // share of the time, 0 to 1, with any work
	SoftIRQ float64 `json:"softirq"` // of which in software interrupts
	NetRx   float64 `json:"net_rx_per_second"`
}

// Drop is one reason for which packets were dropped.
type Drop struct {
	Reason  string  `json:"reason"`
	Help    string  `json:"help"`
	Packets uint64  `json:"packets"`
	Rate    float64 `json:"packets_per_second"`
}

// Balance says how evenly work lies: the busiest over the mean of all. 1 is even, n is all on one of n, 0 is no work.
type Balance struct {
	Ratio   float64 `json:"busiest_over_mean"`
	Busiest string  `json:"busiest"`
}

// Balances are those of a frame.
type Balances struct {
	Lanes  Balance `json:"lanes"`
	Queues Balance `json:"queues"`
	Cores  Balance `json:"cores"`
}

// balanceOf names the busiest of n, the first of equals.
func balanceOf(n int, work func(int) float64, name func(int) string) Balance {
	sum, busiest := 0.0, 0
	for i := range n {
		sum += work(i)
		if work(i) > work(busiest) {
			busiest = i
		}
	}
	if sum <= 0 {
		return Balance{}
	}
	return Balance{Ratio: work(busiest) * float64(n) / sum, Busiest: name(busiest)}
}
