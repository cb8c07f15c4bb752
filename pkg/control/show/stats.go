// SPDX-License-Identifier: Apache-2.0

package show

import (
	"maps"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Stats is the part of the daemon's stats answer that is shown. Members that the daemon does not send are zero.
type Stats struct {
	Up       bool                   `json:"up"`
	TUN      TUNFeatures            `json:"tun"`
	Underlay UnderlayFeatures       `json:"underlay"`
	Path     *config.UnderlayReport `json:"path"`
	Lanes    []LaneStats            `json:"lanes"`
	Slow     LaneStats              `json:"slow"`  // packets outside the lanes' fast path
	Drops    map[string]uint64      `json:"drops"` // by reason, without the lanes' drops
	Spread   *config.SpreadReport   `json:"spread"`
	PathMTU  config.PathMTUReport   `json:"path_mtu"`
	// FailingHandshakes has the peers that do not answer.
	FailingHandshakes config.HandshakeReport `json:"failing_handshakes"`
	// PostQuantum is nil if the daemon does not send it.
	PostQuantum *config.PostQuantumReport `json:"post_quantum"`
	// Names has the peers with names.
	Names     config.NameReport `json:"names"`
	Selection *Selection        `json:"selection"`
	Cipher    string            `json:"cipher"`  // "" if the daemon does not send it
	Workers   *int              `json:"workers"` // nil if the daemon does not send it
}

// TUNFeatures are the offloads of the interface.
type TUNFeatures struct {
	TSO   bool `json:"tso"`
	USO   bool `json:"uso"`
	Steer bool `json:"steer"`
	// NetNS is the inode of the interface's network namespace, 0 if the daemon does not know it.
	NetNS uint64 `json:"netns,omitempty"`
}

// UnderlayFeatures are the features of the underlay's UDP sockets.
type UnderlayFeatures struct {
	GSO bool `json:"gso"`
	// DestinationsWithoutGSO is the number of addresses to which a device refused GSO lately.
	DestinationsWithoutGSO int `json:"destinations_without_gso"`
	// DestinationsLosingTrains is the number of addresses to which trains sent with GSO were lost on the way.
	DestinationsLosingTrains int  `json:"destinations_losing_trains"`
	GRO                      bool `json:"gro"`
	IPv4                     bool `json:"ipv4"`
	IPv6                     bool `json:"ipv6"`
	Select                   bool `json:"select"`
	Filter                   bool `json:"filter"`
	DontFragment             bool `json:"dont_fragment"`
}

// LaneStats counts the traffic of one lane: inner packets and their bytes, trains at the TUN device, runs at the underlay.
type LaneStats struct {
	TxPackets   uint64      `json:"tx_packets"`
	TxBytes     uint64      `json:"tx_bytes"`
	TxTrains    uint64      `json:"tx_trains"`
	TxRuns      uint64      `json:"tx_runs"`
	RxPackets   uint64      `json:"rx_packets"`
	RxBytes     uint64      `json:"rx_bytes"`
	RxTrains    uint64      `json:"rx_trains"`
	RxRuns      uint64      `json:"rx_runs"`
	TxMarks     uint64      `json:"tx_marks"`
	RxMarks     uint64      `json:"rx_marks"`
	TxSprayed   uint64      `json:"tx_sprayed"`
	RxSprayed   uint64      `json:"rx_sprayed"`
	RxOrder     OrderStats  `json:"rx_order"`
	ICMPErrors  uint64      `json:"icmp_errors"`
	ICMPLimited uint64      `json:"icmp_limited"`
	TxWorkers   WorkerStats `json:"tx_workers"`
	RxWorkers   WorkerStats `json:"rx_workers"`
	// SocketDrops counts buffers; reason rx_socket in Drops estimates the packets in them.
	SocketDrops uint64            `json:"socket_drops"`
	Drops       map[string]uint64 `json:"drops"`
}

// OrderStats counts the messages of sprayed flows that arrived out of order. See engine.OrderStats.
type OrderStats struct {
	Waited    uint64 `json:"waited"`
	Late      uint64 `json:"late"`
	Skipped   uint64 `json:"skipped"`
	Unordered uint64 `json:"unordered"`
}

// WorkerStats counts the jobs that a lane submitted to the worker pool. See workpool.Stats.
type WorkerStats struct {
	Submitted uint64 `json:"submitted"`
	Done      uint64 `json:"done"`
	ByLane    uint64 `json:"by_lane"`
	BackOffs  uint64 `json:"back_offs"`
}

// Selection describes how the kernel selects the lane of a received datagram.
type Selection struct {
	ByPort bool   `json:"by_port"`
	Plans  int    `json:"plans"`
	Wanted int    `json:"wanted"`
	Reason string `json:"reason,omitempty"`
}

// AllDrops returns the sum of all drops by reason: in the lanes, outside the lanes, and in the XDP
// program.
func (s *Stats) AllDrops() map[string]uint64 {
	sum := maps.Clone(s.Drops)
	if sum == nil {
		sum = map[string]uint64{}
	}
	for _, l := range append([]LaneStats{s.Slow}, s.Lanes...) {
		for reason, n := range l.Drops {
			sum[reason] += n
		}
	}
	if s.Path != nil {
		for reason, n := range s.Path.Drops {
			sum[reason] += n
		}
	}
	return sum
}

// workers returns the sum over all lanes, for sending and for receiving.
func (s *Stats) workers() (tx, rx WorkerStats) {
	for i := range s.Lanes {
		tx.add(s.Lanes[i].TxWorkers)
		rx.add(s.Lanes[i].RxWorkers)
	}
	return tx, rx
}

func (w *WorkerStats) add(o WorkerStats) {
	w.Submitted += o.Submitted
	w.Done += o.Done
	w.ByLane += o.ByLane
	w.BackOffs += o.BackOffs
}
