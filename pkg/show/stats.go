// SPDX-License-Identifier: Apache-2.0

package show

import (
	"maps"

	"github.com/ropewalk/ropewalk/pkg/config"
)

// Stats is what a daemon's stats operation tells, as far as it is shown. Members that the daemon does not send are zero.
type Stats struct {
	Up        bool                   `json:"up"`
	TUN       TUNFeatures            `json:"tun"`
	Underlay  UnderlayFeatures       `json:"underlay"`
	Way       *config.UnderlayReport `json:"way"`
	Lanes     []LaneStats            `json:"lanes"`
	Slow      LaneStats              `json:"slow"`  // what no lane carried
	Drops     map[string]uint64      `json:"drops"` // by reason, without those of lanes
	Spread    *config.SpreadReport   `json:"spread"`
	Selection *Selection             `json:"selection"`
	Cipher    string                 `json:"cipher"`  // "" if the daemon does not tell
	Workers   *int                   `json:"workers"` // nil if it does not
}

// TUNFeatures are the offloads of the interface.
type TUNFeatures struct {
	TSO   bool `json:"tso"`
	USO   bool `json:"uso"`
	Steer bool `json:"steer"`
}

// UnderlayFeatures are what the UDP sockets of the underlay can do.
type UnderlayFeatures struct {
	GSO    bool `json:"gso"`
	GRO    bool `json:"gro"`
	IPv4   bool `json:"ipv4"`
	IPv6   bool `json:"ipv6"`
	Select bool `json:"select"`
	Filter bool `json:"filter"`
}

// LaneStats is what one lane has carried: inner packets and their bytes, trains at the TUN, runs at the underlay.
type LaneStats struct {
	TxPackets uint64            `json:"tx_packets"`
	TxBytes   uint64            `json:"tx_bytes"`
	TxTrains  uint64            `json:"tx_trains"`
	TxRuns    uint64            `json:"tx_runs"`
	RxPackets uint64            `json:"rx_packets"`
	RxBytes   uint64            `json:"rx_bytes"`
	RxTrains  uint64            `json:"rx_trains"`
	RxRuns    uint64            `json:"rx_runs"`
	TxCrew    CrewStats         `json:"tx_crew"`
	RxCrew    CrewStats         `json:"rx_crew"`
	Drops     map[string]uint64 `json:"drops"`
}

// CrewStats is what became of the trains that a lane offered to workers.
type CrewStats struct {
	Offered   uint64 `json:"offered"`
	Done      uint64 `json:"done"`
	TakenBack uint64 `json:"taken_back"`
	BackOffs  uint64 `json:"back_offs"`
}

// Selection says how the lanes of what arrives are chosen.
type Selection struct {
	ByPort bool   `json:"by_port"`
	Plans  int    `json:"plans"`
	Wanted int    `json:"wanted"`
	Reason string `json:"reason,omitempty"`
}

// AllDrops are those of lanes, of what no lane carries and of the XDP program, by reason.
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
	if s.Way != nil {
		for reason, n := range s.Way.Drops {
			sum[reason] += n
		}
	}
	return sum
}

// crew adds up what the lanes offered, sending and receiving.
func (s *Stats) crew() (tx, rx CrewStats) {
	for i := range s.Lanes {
		tx.add(s.Lanes[i].TxCrew)
		rx.add(s.Lanes[i].RxCrew)
	}
	return tx, rx
}

func (c *CrewStats) add(o CrewStats) {
	c.Offered += o.Offered
	c.Done += o.Done
	c.TakenBack += o.TakenBack
	c.BackOffs += o.BackOffs
}
