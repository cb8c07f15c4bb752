// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/crew"
	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/tun"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// padLimit is the TUN's MTU, read once per batch.
type padLimit = atomic.Int64

// lane is one share of the flows: a TUN queue and the underlay lane of the same number. Its transmit and receive
// sides share nothing but the counters.
type lane struct {
	engine *Engine
	index  int
	queue  tun.Queue
	conn   atomic.Pointer[underlay.Lane] // nil while detached
	stats  laneCounters
	// What others may do for either direction.
	sealJobs, openJobs *crew.JobRing
}

const (
	// maxJobs is how many trains each direction of a lane may have on its desk.
	maxJobs = 8
	// minSealBytes is how much is worth being sealed on another core, in bytes of messages.
	minSealBytes = 8 << 10
)

func newLane(e *Engine, index int, q tun.Queue, c *crew.Crew) *lane {
	return &lane{engine: e, index: index, queue: q, sealJobs: c.NewJobRing(maxJobs), openJobs: c.NewJobRing(maxJobs)}
}

// laneCounters is written by the lane's two goroutines, at most a few times per batch, and read by Stats.
type laneCounters struct {
	tx, rx directionCounters
	drops  drop.Counters
}

// directionCounters counts one direction of a lane. A train is one element at the TUN; a run one at the underlay.
type directionCounters struct {
	packets, bytes, trains, runs atomic.Uint64
	sizes                        sizeCounters
	_                            [96]byte // the two directions belong to two goroutines
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
