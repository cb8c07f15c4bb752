// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/heavyhitter"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// Flows are counted only while somebody asks for them. The first request gives each direction of
// each lane a table. The tables are removed flowsLease after the last request. Without a table a
// lane reads one pointer per train.

const (
	// flowsLease is the time from a request until counting ends.
	flowsLease = 10 * time.Second
	// flowTableLog2 is the size of a table: 256 flows, some 50 KiB. A flow with more than 1/256 of the traffic is always in it.
	flowTableLog2 = 8
	// flowsWait is the pause of a reader while a lane uses its table.
	flowsWait = 20 * time.Microsecond
)

// FlowID identifies a flow of one direction of a lane.
type FlowID struct {
	Peer *Peer
	packet.Flow
	Port uint16 // the peer's source port for messages that were dropped before they were opened, whose Flow is unknown; else 0
}

// FlowCounters counts one flow while its table has an entry for it.
type FlowCounters struct {
	Packets uint64 // delivered, or sent to the peer
	Bytes   uint64 // of these
	Marks   uint64 // packets marked as congested (ECN CE) by this host
	Drops   uint64 // packets dropped by the lane's queue, or because they exceed the path MTU
	First   int64  // of the engine's clock, when the flow was first seen
	Last    int64
	Sprayed int    // sent flows: the number of source ports over which they were last sprayed; 0 for none
	Source  int    // sent flows: the source of the port that they last left from
	Port    uint16 // received flows: the peer's port that they last came from
}

// FlowStats is a snapshot of one flow.
type FlowStats struct {
	Peer     *Peer
	Flow     packet.Flow // zero for messages of the peer that were dropped before they were opened
	Lane     int         // the number of lanes for the slow path
	Received bool
	FlowCounters
}

type FlowTable = heavyhitter.Table[FlowID, FlowCounters]

// flowSlot has the flow table of one direction of a lane. A user takes the table out and puts it back. A lane that finds no table does not
// count, and never waits.
type flowSlot struct {
	table atomic.Pointer[FlowTable] // nil while flows are not counted, and while somebody has the table
}

// Take returns the table for use until Put; nil if there is none now.
func (s *flowSlot) Take() *FlowTable {
	if s.table.Load() == nil {
		return nil
	}
	return s.table.Swap(nil)
}

// Put stores a new table, or the table that Take or Wait returned.
func (s *flowSlot) Put(t *FlowTable) {
	if t != nil {
		s.table.Store(t)
	}
}

// Wait takes the table from a lane that may use it now, for one run at most.
func (s *flowSlot) Wait() *FlowTable {
	for {
		if t := s.Take(); t != nil {
			return t
		}
		time.Sleep(flowsWait)
	}
}

// Observer starts and ends the counting of flows of some lanes.
type Observer struct {
	lanes  []*Lane
	clock  Clock
	mu     sync.Mutex
	active bool  // each slot has a table, or its user will put one back
	since  int64 // when counting began
	until  int64 // when it ends unless there is another request
}

// NewObserver returns an observer of lanes that counts no flows yet.
func NewObserver(clock Clock, lanes ...*Lane) *Observer {
	return &Observer{lanes: lanes, clock: clock}
}

// Flows is engine.Engine.Flows.
func (o *Observer) Flows() (flows []FlowStats, since int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.observe()
	for _, l := range o.lanes {
		flows = l.appendFlows(flows, &l.TxFlows, false)
		flows = l.appendFlows(flows, &l.RxFlows, true)
	}
	return flows, o.since
}

// observe makes lanes count flows for some time. The caller holds mu.
func (o *Observer) observe() {
	now := o.clock()
	o.until = now + int64(flowsLease)
	if o.active {
		return
	}
	o.active, o.since = true, now
	for _, l := range o.lanes {
		l.TxFlows.Put(heavyhitter.New[FlowID, FlowCounters](flowTableLog2, now))
		l.RxFlows.Put(heavyhitter.New[FlowID, FlowCounters](flowTableLog2, now))
	}
	time.AfterFunc(flowsLease, o.end)
}

// end removes the tables if the last request was long ago, else it looks again later.
func (o *Observer) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.active {
		return
	}
	if left := o.until - o.clock(); left > 0 {
		time.AfterFunc(time.Duration(left), o.end)
		return
	}
	for _, l := range o.lanes {
		l.TxFlows.Wait()
		l.RxFlows.Wait()
	}
	o.active = false
}

// appendFlows appends a snapshot of one direction.
func (l *Lane) appendFlows(flows []FlowStats, s *flowSlot, received bool) []FlowStats {
	t := s.Wait()
	defer s.Put(t)
	for id, c := range t.All() {
		flows = append(flows, FlowStats{Peer: id.Peer, Flow: id.Flow, Lane: l.Index, Received: received, FlowCounters: *c})
	}
	return flows
}

// CountFlow returns the counters of a flow, and adds bytes to its weight.
func CountFlow(t *FlowTable, hash uint32, id FlowID, bytes int, now int64) *FlowCounters {
	c := t.Add(hash, id, uint64(bytes), now)
	if c.First == 0 {
		c.First = now
	}
	c.Last = now
	return c
}
