// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"math/bits"
	"reflect"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// icmpCounters counts the ICMP errors of a lane.
type icmpCounters struct{ Sent, Limited atomic.Uint64 }

// orderCounters counts messages of received streams.
type orderCounters struct {
	Received  atomic.Uint64
	Waited    atomic.Uint64 // arrived before others that belong in front of them
	Late      atomic.Uint64 // arrived after the lane had given them up
	Skipped   atomic.Uint64 // given up: they were lost, or were late
	Unordered atomic.Uint64 // delivered as they came: they arrived at several lanes, or the peer had too many streams
}

func (c *orderCounters) load() OrderStats {
	return OrderStats{Waited: c.Waited.Load(), Late: c.Late.Load(), Skipped: c.Skipped.Load(), Unordered: c.Unordered.Load()}
}

// Stats is a snapshot of an engine. Its JSON form is part of the response to the control socket's stats request.
type Stats struct {
	Lanes []LaneStats `json:"lanes"`
	// Slow counts the traffic outside the lanes: keepalives, and packets that waited for a session.
	Slow LaneStats `json:"slow"`
	// Drops counts the drops of handshakes and staging, by reason. Lanes has the drops of each
	// lane.
	Drops map[string]uint64 `json:"drops"`
	// SprayRefused counts the sessions in which no sprayed flows could be announced, because others have the memory for their replay windows.
	SprayRefused uint64 `json:"spray_refused"`
}

// LaneStats is a snapshot of one lane. Bytes count inner packets. A train is one read or write of the TUN, of one or more
// packets. A run is one GSO send or one coalesced receive at the underlay, of one or more messages.
type LaneStats struct {
	TxPackets uint64 `json:"tx_packets"`
	TxBytes   uint64 `json:"tx_bytes"`
	TxTrains  uint64 `json:"tx_trains"`
	TxRuns    uint64 `json:"tx_runs"`
	RxPackets uint64 `json:"rx_packets"`
	RxBytes   uint64 `json:"rx_bytes"`
	RxTrains  uint64 `json:"rx_trains"`
	RxRuns    uint64 `json:"rx_runs"`
	// ICMPErrors counts the ICMP errors sent to senders of packets that cannot be delivered.
	// ICMPLimited counts the errors that the rate limit held back.
	ICMPErrors  uint64 `json:"icmp_errors"`
	ICMPLimited uint64 `json:"icmp_limited"`
	TxMarks     uint64 `json:"tx_marks"` // packets marked as congested (ECN CE) by this host
	RxMarks     uint64 `json:"rx_marks"`
	// TxControl counts control messages (hellos, probes, and answers to them) to send: they are in
	// TxPackets or in Drops. RxControl counts the control messages that were received and
	// accepted.
	TxControl uint64         `json:"tx_control"`
	RxControl uint64         `json:"rx_control"`
	TxSprayed uint64         `json:"tx_sprayed"` // packets of sprayed flows
	RxSprayed uint64         `json:"rx_sprayed"`
	RxOrder   OrderStats     `json:"rx_order"`   // how the lane has put RxSprayed in order
	TxWorkers workpool.Stats `json:"tx_workers"` // jobs submitted to workers
	RxWorkers workpool.Stats `json:"rx_workers"`
	// Sizes of runs. Received runs count as they arrived, and sent runs if they could be sent.
	TxRunSizes RunSizes `json:"tx_run_sizes"`
	RxRunSizes RunSizes `json:"rx_run_sizes"`
	// SocketDrops counts the buffers that the kernel dropped at the lane's socket. Drops has an estimate of the packets in them.
	SocketDrops uint64            `json:"socket_drops"`
	Drops       map[string]uint64 `json:"drops"`
}

// OrderStats counts messages of sprayed flows.
type OrderStats struct {
	Waited    uint64 `json:"waited"`    // for others that belong in front of them
	Late      uint64 `json:"late"`      // delivered after the lane had given them up
	Skipped   uint64 `json:"skipped"`   // given up, because they were lost or late
	Unordered uint64 `json:"unordered"` // delivered as they came, because they arrived at several lanes or the peer had too many streams
}

// Add adds other to o.
func (o *OrderStats) Add(other *OrderStats) {
	o.Waited += other.Waited
	o.Late += other.Late
	o.Skipped += other.Skipped
	o.Unordered += other.Unordered
}

func (l *Lane) Snapshot() LaneStats {
	tx, rx := &l.Stats.Tx, &l.Stats.Rx
	return LaneStats{
		TxPackets: tx.Packets.Load(), TxBytes: tx.bytes.Load(), TxTrains: tx.trains.Load(), TxRuns: tx.Runs.Load(),
		RxPackets: rx.Packets.Load(), RxBytes: rx.bytes.Load(), RxTrains: rx.trains.Load(), RxRuns: rx.Runs.Load(),
		TxMarks:   l.Stats.TxMarks.Load(),
		RxMarks:   l.Stats.RxMarks.Load(),
		TxControl: l.Stats.TxControl.Load(), RxControl: l.Stats.RxControl.Load(),
		TxSprayed: l.Stats.Sprayed.Load(), RxSprayed: l.Stats.Orders.Received.Load(), RxOrder: l.Stats.Orders.load(),
		ICMPErrors: l.Stats.ICMP.Sent.Load(), ICMPLimited: l.Stats.ICMP.Limited.Load(),
		TxWorkers: l.SealJobs.Stats(), RxWorkers: l.OpenJobs.Stats(),
		TxRunSizes: tx.Sizes.load(), RxRunSizes: rx.Sizes.load(),
		Drops: DropMap(&l.Stats.Drops),
	}
}

// sizeClasses is the number of size classes of runs: powers of two, and larger.
const sizeClasses = 8

// RunSizes is a histogram of the number of messages per run.
type RunSizes struct {
	// Runs[i] counts the runs of at most 1<<i messages that are not in the class before; the last class has no upper bound.
	Runs     [sizeClasses]uint64 `json:"runs"`
	Messages uint64              `json:"messages"`
}

// Add adds other to r.
func (r *RunSizes) Add(other *RunSizes) {
	for i, n := range other.Runs {
		r.Runs[i] += n
	}
	r.Messages += other.Messages
}

// Note counts a run of n messages, at least one.
func (r *RunSizes) Note(n int) {
	r.Runs[min(bits.Len(uint(n-1)), sizeClasses-1)]++
	r.Messages += uint64(n)
}

// NoteBytes counts a run of n bytes in messages of size bytes; size 0 means a single message.
func (r *RunSizes) NoteBytes(n, size int) {
	if size <= 0 || n <= size {
		r.Note(1)
		return
	}
	r.Note((n + size - 1) / size)
}

// sizeCounters is the atomic form of RunSizes for one direction, updated once per batch.
type sizeCounters struct {
	runs     [sizeClasses]atomic.Uint64
	messages atomic.Uint64
}

// Publish adds the sizes of one batch.
func (c *sizeCounters) Publish(batch *RunSizes) {
	if batch.Messages == 0 {
		return
	}
	for i, n := range batch.Runs {
		if n > 0 {
			c.runs[i].Add(n)
		}
	}
	c.messages.Add(batch.Messages)
}

func (c *sizeCounters) load() (r RunSizes) {
	for i := range c.runs {
		r.Runs[i] = c.runs[i].Load()
	}
	r.Messages = c.messages.Load()
	return r
}

func DropMap(c *drop.Counters) map[string]uint64 {
	m := map[string]uint64{}
	for r := drop.None + 1; r < drop.Count; r++ {
		if n := c.Get(r); n > 0 {
			m[r.String()] = n
		}
	}
	return m
}

// Add adds the counters of a previous engine. It ignores lanes that s does not have.
func (s *Stats) Add(before *Stats) { add(reflect.ValueOf(s).Elem(), reflect.ValueOf(before).Elem()) }

// add adds the counters in o to the same ones in s.
func add(s, o reflect.Value) {
	switch s.Kind() {
	case reflect.Uint64:
		s.SetUint(s.Uint() + o.Uint())
	case reflect.Struct:
		for i := range s.NumField() {
			add(s.Field(i), o.Field(i))
		}
	case reflect.Array, reflect.Slice:
		for i := range min(s.Len(), o.Len()) {
			add(s.Index(i), o.Index(i))
		}
	case reflect.Map:
		for reason, n := range o.Interface().(map[string]uint64) {
			s.Interface().(map[string]uint64)[reason] += n
		}
	}
}

// PeerTraffic is the set of all counters of a peer.
type PeerTraffic struct {
	RxBytes uint64      `json:"rx_bytes"`
	TxBytes uint64      `json:"tx_bytes"`
	Packets PeerPackets `json:"packets"`
}

// Totals returns all counters of the peer.
func (p *Peer) Totals() (t PeerTraffic) {
	t.RxBytes, t.TxBytes = p.Traffic()
	t.Packets = p.Packets()
	return t
}

// AddTotals adds the counters of a previous engine for the peer.
func (p *Peer) AddTotals(before PeerTraffic) {
	p.Slow.Rx.Add(before.RxBytes)
	p.Slow.Tx.Add(before.TxBytes)
	p.Slow.RxPackets.Add(before.Packets.Rx)
	p.Slow.TxPackets.Add(before.Packets.Tx)
	p.Slow.RxDrops.Add(before.Packets.RxDrops)
	p.Slow.TxDrops.Add(before.Packets.TxDrops)
}
