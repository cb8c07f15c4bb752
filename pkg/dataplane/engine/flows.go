// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/heavyhitter"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// Flows are counted only while somebody asks for them: the first request gives each direction of each lane a table, and flowsLease
// after the last one the tables are removed. Without a table a lane reads one pointer per train.

const (
	// flowsLease is the time from a request until counting ends.
	flowsLease = 10 * time.Second
	// flowTableLog2 is the size of a table: 256 flows, some 50 KiB. A flow with more than 1/256 of the traffic is always in it.
	flowTableLog2 = 8
	// flowsWait is the pause of a reader while a lane uses its table.
	flowsWait = 20 * time.Microsecond
)

// flowID identifies a flow of one direction of a lane.
type flowID struct {
	peer *Peer
	packet.Flow
	port uint16 // the peer's source port for messages that were dropped before they were opened, whose Flow is unknown; else 0
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

type flowTable = heavyhitter.Table[flowID, FlowCounters]

// flowSlot has the flow table of one direction of a lane. A user takes the table out and puts it back. A lane that finds no table does not
// count, and never waits.
type flowSlot struct {
	table atomic.Pointer[flowTable] // nil while flows are not counted, and while somebody has the table
}

// take returns the table for use until put; nil if there is none now.
func (s *flowSlot) take() *flowTable {
	if s.table.Load() == nil {
		return nil
	}
	return s.table.Swap(nil)
}

// put puts back what take or wait returned.
func (s *flowSlot) put(t *flowTable) {
	if t != nil {
		s.table.Store(t)
	}
}

// wait takes the table from a lane that may use it now, for one run at most.
func (s *flowSlot) wait() *flowTable {
	for {
		if t := s.take(); t != nil {
			return t
		}
		time.Sleep(flowsWait)
	}
}

// flowObserver starts and ends the counting of flows.
type flowObserver struct {
	mu     sync.Mutex
	active bool  // each slot has a table, or its user will put one back
	since  int64 // when counting began
	until  int64 // when it ends unless there is another request
}

// Flows returns the flows with most traffic in both directions of each lane, and when counting began. It begins with the first call, and
// ends some seconds after the last one. Packets that pass while a table is copied, for some microseconds, are not counted.
func (e *Engine) Flows() (flows []FlowStats, since int64) {
	o := &e.observer
	o.mu.Lock()
	defer o.mu.Unlock()
	e.observe()
	for _, l := range e.allLanes() {
		flows = l.appendFlows(flows, &l.txFlows, false)
		flows = l.appendFlows(flows, &l.rxFlows, true)
	}
	return flows, o.since
}

// allLanes returns all lanes, and the slow path's.
func (e *Engine) allLanes() []*lane { return append(slices.Clone(e.lanes), e.slow.lane) }

// observe makes lanes count flows for some time. The caller holds observer.mu.
func (e *Engine) observe() {
	o, now := &e.observer, e.cfg.Clock()
	o.until = now + int64(flowsLease)
	if o.active {
		return
	}
	o.active, o.since = true, now
	for _, l := range e.allLanes() {
		l.txFlows.put(heavyhitter.New[flowID, FlowCounters](flowTableLog2, now))
		l.rxFlows.put(heavyhitter.New[flowID, FlowCounters](flowTableLog2, now))
	}
	time.AfterFunc(flowsLease, e.endFlows)
}

// endFlows removes the tables if the last request was long ago, else it looks again later.
func (e *Engine) endFlows() {
	o := &e.observer
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.active {
		return
	}
	if left := o.until - e.cfg.Clock(); left > 0 {
		time.AfterFunc(time.Duration(left), e.endFlows)
		return
	}
	for _, l := range e.allLanes() {
		l.txFlows.wait()
		l.rxFlows.wait()
	}
	o.active = false
}

// appendFlows appends a snapshot of one direction.
func (l *lane) appendFlows(flows []FlowStats, s *flowSlot, received bool) []FlowStats {
	t := s.wait()
	defer s.put(t)
	for id, c := range t.All() {
		flows = append(flows, FlowStats{Peer: id.peer, Flow: id.Flow, Lane: l.index, Received: received, FlowCounters: *c})
	}
	return flows
}

// countFlow returns the counters of a flow, and adds bytes to its weight.
func countFlow(t *flowTable, hash uint32, id flowID, bytes int, now int64) *FlowCounters {
	c := t.Add(hash, id, uint64(bytes), now)
	if c.First == 0 {
		c.First = now
	}
	c.Last = now
	return c
}

// noteFlow counts the parsed train to p, without the first skip packets, while flows are observed.
func (t *transmitter) noteFlow(p *Peer, source, skip int) {
	table := t.lane.txFlows.take()
	if table == nil {
		return
	}
	n := t.train.Segments() - skip
	bytes := (n-1)*t.train.SegmentLen() + t.train.LastLen()
	c := countFlow(table, t.train.FlowHash(), flowID{peer: p, Flow: t.train.Flow()}, bytes, t.now)
	c.Packets += uint64(n)
	c.Bytes += uint64(bytes)
	c.Source, c.Sprayed = source, 0
	if t.stream != nil {
		c.Sprayed = t.stream.ports()
	}
	t.lane.txFlows.put(table)
}

// noteRefused is noteFlow for a train that is dropped.
func (t *transmitter) noteRefused(p *Peer, source, skip int) {
	table := t.lane.txFlows.take()
	if table == nil {
		return
	}
	c := countFlow(table, t.train.FlowHash(), flowID{peer: p, Flow: t.train.Flow()}, 0, t.now)
	c.Drops += uint64(t.train.Segments() - skip)
	c.Source = source
	t.lane.txFlows.put(table)
}

// noteQueued counts marks and drops of a train that has waited in a queue, while flows are observed.
func (t *transmitter) noteQueued(p *Peer, source int, train []byte, marks, drops int) {
	table := t.lane.txFlows.take()
	if table == nil {
		return
	}
	ip := train[offload.VnetHdrLen:]
	c := countFlow(table, packet.FlowHash(ip), flowID{peer: p, Flow: packet.FlowOf(ip)}, 0, t.now)
	c.Marks += uint64(marks)
	c.Drops += uint64(drops)
	c.Source = source
	t.lane.txFlows.put(table)
}

// noteFlow counts one packet of p that arrived in e. The caller has the table.
func (r *receiver) noteFlow(plain []byte, p *Peer, e *element, delivered bool) {
	c := countFlow(r.observed, packet.FlowHash(plain), flowID{peer: p, Flow: packet.FlowOf(plain)}, len(plain), r.now)
	c.Port = e.From.Dst.Port()
	if !delivered {
		c.Drops++
		return
	}
	c.Packets++
	c.Bytes += uint64(len(plain))
	if e.mark {
		c.Marks++
	}
}

// noteUnopened counts n messages that the receive queue dropped, while flows are observed. Their inner flow is unknown.
func (r *receiver) noteUnopened(e *element, n, bytes int) {
	table := r.lane.rxFlows.take()
	if table == nil {
		return
	}
	port := e.From.Dst.Port()
	c := countFlow(table, uint32(port), flowID{peer: e.flow.peer, port: port}, bytes, r.now)
	c.Port = port
	c.Drops += uint64(n)
	r.lane.rxFlows.put(table)
}
