// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// Compare returns the frame between two samples of one interface. A zero before means that there is only one sample. A
// counter that decreased has been reset to 0, as in Prometheus. A counter missing in before has no rate.
func Compare(before, now *Sample) *Frame {
	if before.At.IsZero() || before.Interface != now.Interface {
		before = &Sample{At: now.At}
	}
	c := comparison{before: before, now: now, seconds: max(now.At.Sub(before.At).Seconds(), 0)}
	f := &Frame{
		Time: now.At, Seconds: c.seconds, Interface: now.Interface, PublicKey: now.PublicKey, ListenPort: now.ListenPort,
		Up: now.Stats.Up, Features: features(now), PeerCount: len(now.Peers),
		Peers: c.peers(), Lanes: c.lanes(), Queues: c.queues(), Cores: c.cores(), Drops: c.drops(),
	}
	f.addTotals()
	f.Balance = f.balances()
	if now.Flows != nil {
		f.Flows = CompareFlows(before.Flows, now.Flows)
	}
	return f
}

// comparison is two samples with the time between them.
type comparison struct {
	before, now *Sample
	seconds     float64
}

// delta returns the increase of a counter.
func delta(before, now uint64) float64 {
	if now < before {
		return float64(now)
	}
	return float64(now - before)
}

// rate returns an increase per second, 0 if the samples are less than 1 ms apart.
func (c *comparison) rate(grown float64) float64 {
	if c.seconds < 1e-3 {
		return 0
	}
	return grown / c.seconds
}

// ratio returns a/b, 0 for b == 0.
func ratio(a, b float64) float64 {
	if r := a / b; b > 0 && !math.IsInf(r, 0) {
		return r
	}
	return 0
}

// flow returns the traffic of one direction of a lane.
func (c *comparison) flow(before, now directionCounters) Flow {
	f := Flow{
		Bytes: now.bytes, Packets: now.packets, ByteRate: c.rate(delta(before.bytes, now.bytes)),
		PacketRate: c.rate(delta(before.packets, now.packets)), WorkerRate: c.rate(delta(before.workers.Done, now.workers.Done)),
		packets: delta(before.packets, now.packets), trains: delta(before.trains, now.trains), batchMessages: delta(before.sizes.Messages, now.sizes.Messages),
	}
	for i := range f.BatchSizes {
		f.BatchSizes[i] = delta(before.sizes.Runs[i], now.sizes.Runs[i])
		f.batches += f.BatchSizes[i]
	}
	f.PerTrain = ratio(f.packets, f.trains)
	f.PerBatch = ratio(f.batchMessages, f.batches)
	for i := range f.BatchSizes {
		f.BatchSizes[i] = ratio(f.BatchSizes[i], f.batches)
	}
	return f
}

// directionCounters holds the counters of one direction of a lane.
type directionCounters struct {
	bytes, packets, trains uint64
	sizes                  engine.RunSizes
	workers                workpool.Stats
}

func received(l *engine.LaneStats) directionCounters {
	return directionCounters{l.RxBytes, l.RxPackets, l.RxTrains, l.RxRunSizes, l.RxWorkers}
}

func sent(l *engine.LaneStats) directionCounters {
	return directionCounters{l.TxBytes, l.TxPackets, l.TxTrains, l.TxRunSizes, l.TxWorkers}
}

// slowLane is the name of the row for the slow path, which no lane carries.
const slowLane = "slow"

func (c *comparison) lanes() []Lane {
	was, is := &c.before.Stats, &c.now.Stats
	lanes := make([]Lane, 0, len(is.Lanes)+1)
	for i := range is.Lanes {
		before := &is.Lanes[i]
		if i < len(was.Lanes) {
			before = &was.Lanes[i]
		}
		lanes = append(lanes, c.lane(strconv.Itoa(i), before, &is.Lanes[i]))
	}
	lanes = append(lanes, c.lane(slowLane, &was.Slow, &is.Slow))
	setShares(lanes, (*Lane).Rate, func(l *Lane) *float64 { return &l.Share })
	return lanes
}

func (c *comparison) lane(name string, before, now *engine.LaneStats) Lane {
	dropped := 0.0
	for reason, n := range now.Drops {
		dropped += delta(before.Drops[reason], n)
	}
	return Lane{
		Name: name, Rx: c.flow(received(before), received(now)), Tx: c.flow(sent(before), sent(now)), DropRate: c.rate(dropped),
	}
}

// setShares stores each row's share of the sum.
func setShares[T any](all []T, work func(*T) float64, to func(*T) *float64) {
	sum := 0.0
	for i := range all {
		sum += work(&all[i])
	}
	for i := range all {
		*to(&all[i]) = ratio(work(&all[i]), sum)
	}
}

func (c *comparison) peers() []Peer {
	before := make(map[string]*PeerCounters, len(c.before.Peers))
	for i := range c.before.Peers {
		before[c.before.Peers[i].PublicKey] = &c.before.Peers[i]
	}
	peers := make([]Peer, len(c.now.Peers))
	for i := range peers {
		now := &c.now.Peers[i]
		was := before[now.PublicKey]
		if was == nil {
			was = now
		}
		peers[i] = Peer{
			PublicKey: now.PublicKey, Name: now.Name, Endpoint: now.Endpoint, RxBytes: now.RxBytes, TxBytes: now.TxBytes,
			RxRate: c.rate(delta(was.RxBytes, now.RxBytes)), TxRate: c.rate(delta(was.TxBytes, now.TxBytes)),
			Handshake: age(now.LastHandshake, c.now.At), Planned: now.Spread.Planned, Reason: now.Spread.Reason,
		}
		if now.Spread.Active {
			peers[i].Spread = now.Spread.Ports
		}
		if p := now.PostQuantum.Policy; p == config.PostQuantumAuto || p == config.PostQuantumRequired {
			peers[i].PostQuantum = &now.PostQuantum
		}
	}
	setShares(peers, (*Peer).Rate, func(p *Peer) *float64 { return &p.Share })
	return peers
}

func age(then, now time.Time) float64 {
	if then.IsZero() {
		return -1
	}
	return max(now.Sub(then).Seconds(), 0)
}

func (c *comparison) queues() []Queue {
	type id struct {
		device string
		queue  int
	}
	before := make(map[id]*QueueCounters, len(c.before.Host.Queues))
	for i := range c.before.Host.Queues {
		q := &c.before.Host.Queues[i]
		before[id{q.Device, q.Queue}] = q
	}
	queues := make([]Queue, len(c.now.Host.Queues))
	for i := range queues {
		now := &c.now.Host.Queues[i]
		was := before[id{now.Device, now.Queue}]
		if was == nil {
			was = now
		}
		queues[i] = c.queue(was, now)
	}
	setShares(queues, receiveLoad(queues), func(q *Queue) *float64 { return &q.Share })
	return queues
}

func (c *comparison) queue(before, now *QueueCounters) Queue {
	q := Queue{
		Device: now.Device, Queue: now.Queue, RxCounted: now.Rx.Known, TxCounted: now.Tx.Known,
		Rx: c.queueFlow(before.Rx, now.Rx), Tx: c.queueFlow(before.Tx, now.Tx), Cores: []CPUShare{},
	}
	sum := 0.0
	for cpu, n := range now.Interrupts {
		if grown := delta(before.Interrupts[cpu], n); grown > 0 {
			q.Cores = append(q.Cores, CPUShare{CPU: cpu, Share: grown})
			sum += grown
		}
	}
	q.Interrupts = c.rate(sum)
	for i := range q.Cores {
		q.Cores[i].Share = ratio(q.Cores[i].Share, sum)
	}
	slices.SortFunc(q.Cores, func(a, b CPUShare) int { return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.CPU, b.CPU)) })
	return q
}

func (c *comparison) queueFlow(before, now PacketCounters) QueueFlow {
	return QueueFlow{ByteRate: c.rate(delta(before.Bytes, now.Bytes)), PacketRate: c.rate(delta(before.Packets, now.Packets))}
}

// receiveLoad returns the load measure that all queues report: received packets, or interrupts.
func receiveLoad(queues []Queue) func(*Queue) float64 {
	if slices.ContainsFunc(queues, func(q Queue) bool { return !q.RxCounted }) {
		return func(q *Queue) float64 { return q.Interrupts }
	}
	return func(q *Queue) float64 { return q.Rx.PacketRate }
}

func (c *comparison) cores() []Core {
	before := make(map[int]CoreCounters, len(c.before.Host.Cores))
	for _, core := range c.before.Host.Cores {
		before[core.CPU] = core
	}
	cores := make([]Core, len(c.now.Host.Cores))
	for i, now := range c.now.Host.Cores {
		was, known := before[now.CPU]
		if !known {
			was = now
		}
		total := delta(was.Total, now.Total)
		cores[i] = Core{
			CPU: now.CPU, Busy: min(ratio(delta(was.Busy, now.Busy), total), 1),
			SoftIRQ: min(ratio(delta(was.SoftIRQ, now.SoftIRQ), total), 1), NetRx: c.rate(delta(was.NetRx, now.NetRx)),
		}
	}
	return cores
}

// drops returns the drops of all lanes and of the slow path.
func (c *comparison) drops() []Drop {
	before, now := dropsOf(c.before), dropsOf(c.now)
	drops := []Drop{}
	for reason, n := range now {
		drops = append(drops, Drop{Reason: reason, Help: helpOf(reason), Packets: n, Rate: c.rate(delta(before[reason], n))})
	}
	slices.SortFunc(drops, func(a, b Drop) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Reason, b.Reason))
	})
	return drops
}

func dropsOf(s *Sample) map[string]uint64 {
	sum := map[string]uint64{}
	add := func(drops map[string]uint64) {
		for reason, n := range drops {
			sum[reason] += n
		}
	}
	add(s.Stats.Drops)
	add(s.Stats.Slow.Drops)
	for i := range s.Stats.Lanes {
		add(s.Stats.Lanes[i].Drops)
	}
	return sum
}

// helpOf returns the text for a drop reason, "" for one unknown to this release.
func helpOf(reason string) string {
	for r := drop.None + 1; r < drop.Count; r++ {
		if r.String() == reason {
			return r.Help()
		}
	}
	return ""
}

// addTotals sums the lanes.
func (f *Frame) addTotals() {
	for i := range f.Lanes {
		f.Rx.add(&f.Lanes[i].Rx)
		f.Tx.add(&f.Lanes[i].Tx)
	}
	f.Rx.average()
	f.Tx.average()
}

func (f *Flow) add(o *Flow) {
	f.Bytes += o.Bytes
	f.Packets += o.Packets
	f.ByteRate += o.ByteRate
	f.PacketRate += o.PacketRate
	f.WorkerRate += o.WorkerRate
	f.packets += o.packets
	f.trains += o.trains
	f.batches += o.batches
	f.batchMessages += o.batchMessages
	for i, share := range o.BatchSizes {
		f.BatchSizes[i] += share * o.batches
	}
}

// average turns sums into averages and shares.
func (f *Flow) average() {
	f.PerTrain = ratio(f.packets, f.trains)
	f.PerBatch = ratio(f.batchMessages, f.batches)
	for i := range f.BatchSizes {
		f.BatchSizes[i] = ratio(f.BatchSizes[i], f.batches)
	}
}

func (f *Frame) balances() Balances {
	lanes := f.Lanes[:len(f.Lanes)-1] // without the slow one
	arriving := receiveLoad(f.Queues)
	return Balances{
		Lanes: balanceOf(len(lanes), func(i int) float64 { return lanes[i].Rate() }, func(i int) string { return lanes[i].Name }),
		Queues: balanceOf(len(f.Queues), func(i int) float64 { return arriving(&f.Queues[i]) },
			func(i int) string { return fmt.Sprintf("%s %d", f.Queues[i].Device, f.Queues[i].Queue) }),
		Cores: balanceOf(len(f.Cores), func(i int) float64 { return f.Cores[i].Busy }, func(i int) string { return fmt.Sprintf("cpu%d", f.Cores[i].CPU) }),
	}
}

func features(s *Sample) []string {
	list := []string{}
	if s.Stats.Up {
		list = append(list, underlayName(&s.Stats.Path))
	}
	for _, f := range []struct {
		name string
		on   bool
	}{
		{"TSO", s.Stats.TUN.TSO},
		{"USO", s.Stats.TUN.USO},
		{"steering", s.Stats.TUN.Steer},
		{"GSO", s.Stats.Underlay.GSO},
		{"GRO", s.Stats.Underlay.GRO},
		{"IPv4", s.Stats.Underlay.IPv4},
		{"IPv6", s.Stats.Underlay.IPv6},
		{"port-select", s.Stats.Underlay.Select},
	} {
		if f.on {
			list = append(list, f.name)
		}
	}
	return list
}

// underlayName returns udp, or xdp with the socket mode, such as "xdp zerocopy".
func underlayName(underlay *config.UnderlayReport) string {
	if underlay.Path != config.UnderlayXDP {
		return config.UnderlayUDP.String()
	}
	return strings.TrimSuffix(underlay.Path.String()+" "+underlay.How, " ")
}
