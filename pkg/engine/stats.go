// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/ropewalk/ropewalk/pkg/crew"
	"github.com/ropewalk/ropewalk/pkg/drop"
)

// Stats is a snapshot of an engine. Its JSON form is what the control socket's stats request returns.
type Stats struct {
	Lanes []LaneStats `json:"lanes"`
	// Slow is what no lane carried: keepalives, and packets that waited for a session.
	Slow LaneStats `json:"slow"`
	// Drops are those of handshakes and staging, by reason; each lane has its own.
	Drops map[string]uint64 `json:"drops"`
}

// LaneStats is a snapshot of one lane. Bytes are those of inner packets. A train is one element at the TUN, of one or
// more packets; a run is one element at the underlay, of one or more messages.
type LaneStats struct {
	TxPackets uint64            `json:"tx_packets"`
	TxBytes   uint64            `json:"tx_bytes"`
	TxTrains  uint64            `json:"tx_trains"`
	TxRuns    uint64            `json:"tx_runs"`
	RxPackets uint64            `json:"rx_packets"`
	RxBytes   uint64            `json:"rx_bytes"`
	RxTrains  uint64            `json:"rx_trains"`
	RxRuns    uint64            `json:"rx_runs"`
	TxCrew    crew.Stats        `json:"tx_crew"` // of runs that were offered to the crew
	RxCrew    crew.Stats        `json:"rx_crew"`
	Drops     map[string]uint64 `json:"drops"`
}

// Stats returns a snapshot; it is consistent per counter, not across counters.
func (e *Engine) Stats() Stats {
	s := Stats{Drops: dropMap(&e.Slow)}
	for _, l := range e.lanes {
		s.Lanes = append(s.Lanes, l.snapshot())
	}
	s.Slow = e.slow.lane.snapshot()
	return s
}

func (l *lane) snapshot() LaneStats {
	tx, rx := &l.stats.tx, &l.stats.rx
	return LaneStats{
		TxPackets: tx.packets.Load(), TxBytes: tx.bytes.Load(), TxTrains: tx.trains.Load(), TxRuns: tx.runs.Load(),
		RxPackets: rx.packets.Load(), RxBytes: rx.bytes.Load(), RxTrains: rx.trains.Load(), RxRuns: rx.runs.Load(),
		TxCrew: l.sealing.Stats(), RxCrew: l.opening.Stats(),
		Drops: dropMap(&l.stats.drops),
	}
}

func dropMap(c *drop.Counters) map[string]uint64 {
	m := map[string]uint64{}
	for r := drop.None + 1; r < drop.Count; r++ {
		if n := c.Get(r); n > 0 {
			m[r.String()] = n
		}
	}
	return m
}
