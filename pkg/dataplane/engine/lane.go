// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// lane is a TUN queue and the underlay lane with the same number. Its transmit and receive goroutines share only the counters.
type lane struct {
	engine *Engine
	index  int
	queue  tun.Queue
	conn   atomic.Pointer[underlay.Lane] // nil while detached
	tx     *transmitter                  // nil before the first Start
	stats  laneCounters
	// The flow tables of each direction, while flows are observed.
	txFlows, rxFlows flowSlot
	// Jobs of each direction that workers may run.
	sealJobs, openJobs *workpool.JobRing
	receiver           *receiver // of the receive goroutine; nil before the first port
}

const (
	// maxJobs is the maximum number of trains in the job ring of each direction.
	maxJobs = 8
	// minSealBytes is the minimum number of message bytes for which sealing on another core pays.
	minSealBytes = 8 << 10
)

func newLane(e *Engine, index int, q tun.Queue, pool *workpool.Pool) *lane {
	return &lane{engine: e, index: index, queue: q, sealJobs: pool.NewJobRing(maxJobs), openJobs: pool.NewJobRing(maxJobs)}
}

// laneCounters counts packets and drops. The lane's goroutines write it a few times per batch, and Stats reads it.
type laneCounters struct {
	tx, rx  directionCounters
	held    progress      // of the transmit queue
	sprayed atomic.Uint64 // packets sent in streams
	orders  orderCounters
	txMarks atomic.Uint64 // packets marked as congested by this host
	rxMarks atomic.Uint64
	// Control messages to send, and those that were accepted.
	txControl, rxControl atomic.Uint64
	drops                drop.Counters
	icmp                 icmpCounters
}

// directionCounters counts one direction of a lane. Trains are counted at the TUN, and runs at the underlay.
type directionCounters struct {
	packets, bytes, trains, runs atomic.Uint64
	sizes                        sizeCounters
	progress                     progress
	_                            [88]byte // the two directions are written by two goroutines
}

func (d *directionCounters) add(packets, bytes, trains, runs int) {
	if packets|trains|runs == 0 {
		return
	}
	d.packets.Add(uint64(packets))
	d.bytes.Add(uint64(bytes))
	d.trains.Add(uint64(trains))
	d.runs.Add(uint64(runs))
}
