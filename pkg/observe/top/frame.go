// SPDX-License-Identifier: Apache-2.0

package top

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Frame holds the rates and shares between two samples. `ropewalk top --json` prints its JSON form, and the page draws it.
// Every number in it is finite. Only Handshake can be negative.
type Frame struct {
	Time       time.Time `json:"time"`
	Seconds    float64   `json:"seconds"` // between the samples; 0 for a single sample, with all rates 0
	Interface  string    `json:"interface"`
	PublicKey  string    `json:"public_key"`
	ListenPort uint16    `json:"listen_port"`
	Up         bool      `json:"up"`
	Features   []string  `json:"features"` // underlay mode, offloads and other fast paths in use

	Rx        Flow     `json:"rx"` // inner packets of all lanes and of the slow path
	Tx        Flow     `json:"tx"`
	PeerCount int      `json:"peer_count"`
	Peers     []Peer   `json:"peers"` // in sample order; Sort sorts them
	Lanes     []Lane   `json:"lanes"` // the last is "slow", the slow path
	Queues    []Queue  `json:"queues"`
	Cores     []Core   `json:"cores"`
	Drops     []Drop   `json:"drops"` // nonzero ones, highest rate first
	Balance   Balances `json:"balance"`
	// Flows are the busiest inner flows, if the sample has them.
	Flows []InnerFlow `json:"flows,omitempty"`
}

// Flow is the traffic of one direction. A train is one packet or GSO super-packet at the TUN device. A batch is one send or
// receive at the UDP socket.
type Flow struct {
	Bytes      uint64     `json:"bytes"` // since the interface was created
	Packets    uint64     `json:"packets"`
	ByteRate   float64    `json:"bytes_per_second"`
	PacketRate float64    `json:"packets_per_second"`
	PerTrain   float64    `json:"packets_per_train"` // 0 without trains
	PerBatch   float64    `json:"messages_per_batch"`
	BatchSizes [8]float64 `json:"batch_sizes"` // shares of batches with 1, 2, 3-4, 5-8, 9-16, 17-32, 33-64 and more messages
	WorkerRate float64    `json:"worker_jobs_per_second"`

	packets, trains, batchMessages, batches float64 // between the samples
}

// Peer is one peer.
type Peer struct {
	PublicKey string  `json:"public_key"`
	Name      string  `json:"name,omitempty"`
	Endpoint  string  `json:"endpoint,omitempty"`
	RxBytes   uint64  `json:"rx_bytes"`
	TxBytes   uint64  `json:"tx_bytes"`
	RxRate    float64 `json:"rx_bytes_per_second"`
	TxRate    float64 `json:"tx_bytes_per_second"`
	Share     float64 `json:"share"`                        // of all peers' bytes, both directions, 0 to 1
	Handshake float64 `json:"handshake_age_seconds"`        // since the last handshake; -1 for never
	Spread    int     `json:"spread_ports"`                 // source ports in use towards the peer; 0 if not spread
	Reason    string  `json:"spread_reason,omitempty"`      // why spread is off
	Planned   bool    `json:"spread_ports_planned_by_peer"` // the peer's port plan is in use
	// PostQuantum describes the session in use, unless the policy is off.
	PostQuantum *config.PeerPostQuantum `json:"post_quantum,omitempty"`
}

// Rate returns the peer's traffic in both directions, in bytes per second.
func (p *Peer) Rate() float64 { return p.RxRate + p.TxRate }

// Lane is one lane.
type Lane struct {
	Name     string  `json:"lane"` // 0, 1, … or slow
	Rx       Flow    `json:"rx"`
	Tx       Flow    `json:"tx"`
	Share    float64 `json:"share"` // of all lanes' bytes, both directions, 0 to 1
	DropRate float64 `json:"drops_per_second"`
}

// Rate returns the lane's traffic in both directions, in bytes per second.
func (l *Lane) Rate() float64 { return l.Rx.ByteRate + l.Tx.ByteRate }

// Queue is one queue of a NIC that carries the tunnel. Its counters include all traffic of the NIC.
type Queue struct {
	Device     string     `json:"device"`
	Queue      int        `json:"queue"`
	RxCounted  bool       `json:"rx_counted"` // received packets are counted; else only interrupts are
	TxCounted  bool       `json:"tx_counted"`
	Rx         QueueFlow  `json:"rx"`
	Tx         QueueFlow  `json:"tx"`
	Interrupts float64    `json:"interrupts_per_second"`
	Share      float64    `json:"share"` // of all queues' received packets, or of interrupts if a queue does not count packets
	Cores      []CPUShare `json:"cores"` // CPUs that handled its interrupts
}

// QueueFlow is the traffic of one queue in one direction.
type QueueFlow struct {
	ByteRate   float64 `json:"bytes_per_second"` // 0 if the driver does not count bytes
	PacketRate float64 `json:"packets_per_second"`
}

// CPUShare is one CPU's share of a queue's interrupts.
type CPUShare struct {
	CPU   int     `json:"cpu"`
	Share float64 `json:"share"` // 0 to 1
}

// Core is one CPU.
type Core struct {
	CPU     int     `json:"cpu"`
	Busy    float64 `json:"busy"`    // share of the time, 0 to 1, with any work
	SoftIRQ float64 `json:"softirq"` // share of time in softirqs, 0 to 1
	NetRx   float64 `json:"net_rx_per_second"`
}

// Drop is one drop reason.
type Drop struct {
	Reason  string  `json:"reason"`
	Help    string  `json:"help"`
	Packets uint64  `json:"packets"`
	Rate    float64 `json:"packets_per_second"`
}

// Balance is the load of the busiest over the mean of all: 1 is even, n means all on one of n, 0 means no load.
type Balance struct {
	Ratio   float64 `json:"busiest_over_mean"`
	Busiest string  `json:"busiest"`
}

// Balances are the balances of a frame.
type Balances struct {
	Lanes  Balance `json:"lanes"`
	Queues Balance `json:"queues"`
	Cores  Balance `json:"cores"`
}

// balanceOf returns the balance of n rows. Of equally busy rows it names the first.
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
