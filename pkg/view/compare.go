// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/crew"
	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/engine"
)

// Compare returns what happened between two samples of one interface. A zero before means that there is one sample only.
// A counter that has gone down began again at 0, as Prometheus takes it; one that was not there before has no rate yet.
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
	f.total()
	f.Balance = f.balances()
	return f
}

// comparison is two samples with the time between them.
type comparison struct {
	before, now *Sample
	seconds     float64
}

// delta is what a counter grew by.
func delta(before, now uint64) float64 {
	if now < before {
		return float64(now)
	}
	return float64(now - before)
}

// rate is per second. Two samples closer than the clock can tell have none.
func (c *comparison) rate(grown float64) float64 {
	if c.seconds < 1e-3 {
		return 0
	}
	return grown / c.seconds
}

// ratio is 0 where there is nothing to divide by.
func ratio(a, b float64) float64 {
	if r := a / b; b > 0 && !math.IsInf(r, 0) {
		return r
	}
	return 0
}

// flow is what one direction of a lane carried.
func (c *comparison) flow(before, now half) Flow {
	f := Flow{
		Bytes: now.bytes, Packets: now.packets, ByteRate: c.rate(delta(before.bytes, now.bytes)),
		PacketRate: c.rate(delta(before.packets, now.packets)), CrewRate: c.rate(delta(before.crew.Done, now.crew.Done)),
		packets: delta(before.packets, now.packets), trains: delta(before.trains, now.trains), runMessages: delta(before.sizes.Messages, now.sizes.Messages),
	}
	for i := range f.RunSizes {
		f.RunSizes[i] = delta(before.sizes.Runs[i], now.sizes.Runs[i])
		f.runs += f.RunSizes[i]
	}
	f.PerTrain = ratio(f.packets, f.trains)
	f.PerRun = ratio(f.runMessages, f.runs)
	for i := range f.RunSizes {
		f.RunSizes[i] = ratio(f.RunSizes[i], f.runs)
	}
	return f
}

// half is one direction of a lane.
type half struct {
	bytes, packets, trains uint64
	sizes                  engine.RunSizes
	crew                   crew.Stats
}

func received(l *engine.LaneStats) half {
	return half{l.RxBytes, l.RxPackets, l.RxTrains, l.RxRunSizes, l.RxCrew}
}

func sent(l *engine.LaneStats) half {
	return half{l.TxBytes, l.TxPackets, l.TxTrains, l.TxRunSizes, l.TxCrew}
}

// slowLane is the name of what no lane carried.
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
	share(lanes, (*Lane).Rate, func(l *Lane) *float64 { return &l.Share })
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

// share stores each one's part of the sum.
func share[T any](all []T, work func(*T) float64, to func(*T) *float64) {
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
			PublicKey: now.PublicKey, Endpoint: now.Endpoint, RxBytes: now.RxBytes, TxBytes: now.TxBytes,
			RxRate: c.rate(delta(was.RxBytes, now.RxBytes)), TxRate: c.rate(delta(was.TxBytes, now.TxBytes)),
			Handshake: age(now.LastHandshake, c.now.At), Planned: now.Spread.Planned, Reason: now.Spread.Reason,
		}
		if now.Spread.Active {
			peers[i].Spread = now.Spread.Ports
		}
	}
	share(peers, (*Peer).Rate, func(p *Peer) *float64 { return &p.Share })
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
	before := make(map[id]*QueueCounters, len(c.before.Machine.Queues))
	for i := range c.before.Machine.Queues {
		q := &c.before.Machine.Queues[i]
		before[id{q.Device, q.Queue}] = q
	}
	queues := make([]Queue, len(c.now.Machine.Queues))
	for i := range queues {
		now := &c.now.Machine.Queues[i]
		was := before[id{now.Device, now.Queue}]
		if was == nil {
			was = now
		}
		queues[i] = c.queue(was, now)
	}
	share(queues, arrivals(queues), func(q *Queue) *float64 { return &q.Share })
	return queues
}

func (c *comparison) queue(before, now *QueueCounters) Queue {
	q := Queue{
		Device: now.Device, Queue: now.Queue, Counts: now.Rx.Known, CountsSent: now.Tx.Known,
		Rx: c.queueFlow(before.Rx, now.Rx), Tx: c.queueFlow(before.Tx, now.Tx), Cores: []Part{},
	}
	sum := 0.0
	for cpu, n := range now.Interrupts {
		if grown := delta(before.Interrupts[cpu], n); grown > 0 {
			q.Cores = append(q.Cores, Part{CPU: cpu, Share: grown})
			sum += grown
		}
	}
	q.Interrupts = c.rate(sum)
	for i := range q.Cores {
		q.Cores[i].Share = ratio(q.Cores[i].Share, sum)
	}
	slices.SortFunc(q.Cores, func(a, b Part) int { return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.CPU, b.CPU)) })
	return q
}

func (c *comparison) queueFlow(before, now Counted) QueueFlow {
	return QueueFlow{ByteRate: c.rate(delta(before.Bytes, now.Bytes)), PacketRate: c.rate(delta(before.Packets, now.Packets))}
}

// arrivals tells how much arrives at a queue: what all of them can tell.
func arrivals(queues []Queue) func(*Queue) float64 {
	if slices.ContainsFunc(queues, func(q Queue) bool { return !q.Counts }) {
		return func(q *Queue) float64 { return q.Interrupts }
	}
	return func(q *Queue) float64 { return q.Rx.PacketRate }
}

func (c *comparison) cores() []Core {
	before := make(map[int]CoreCounters, len(c.before.Machine.Cores))
	for _, core := range c.before.Machine.Cores {
		before[core.CPU] = core
	}
	cores := make([]Core, len(c.now.Machine.Cores))
	for i, now := range c.now.Machine.Cores {
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

// drops are those of lanes and of what no lane carries.
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

// helpOf knows the reasons of this release; a daemon may be of another.
func helpOf(reason string) string {
	for r := drop.None + 1; r < drop.Count; r++ {
		if r.String() == reason {
			return r.Help()
		}
	}
	return ""
}

// total adds the lanes up.
func (f *Frame) total() {
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
	f.CrewRate += o.CrewRate
	f.packets += o.packets
	f.trains += o.trains
	f.runs += o.runs
	f.runMessages += o.runMessages
	for i, share := range o.RunSizes {
		f.RunSizes[i] += share * o.runs
	}
}

// average makes averages and shares of sums.
func (f *Flow) average() {
	f.PerTrain = ratio(f.packets, f.trains)
	f.PerRun = ratio(f.runMessages, f.runs)
	for i := range f.RunSizes {
		f.RunSizes[i] = ratio(f.RunSizes[i], f.runs)
	}
}

func (f *Frame) balances() Balances {
	lanes := f.Lanes[:len(f.Lanes)-1] // without the slow one
	arriving := arrivals(f.Queues)
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
		list = append(list, underlayName(&s.Stats.Way))
	}
	for _, f := range []struct {
		name string
		on   bool
	}{
		{"TSO", s.Stats.TUN.TSO},
		{"USO", s.Stats.TUN.USO},
		{"steered", s.Stats.TUN.Steer},
		{"GSO", s.Stats.Underlay.GSO},
		{"GRO", s.Stats.Underlay.GRO},
		{"IPv4", s.Stats.Underlay.IPv4},
		{"IPv6", s.Stats.Underlay.IPv6},
		{"by port", s.Stats.Underlay.Select},
	} {
		if f.on {
			list = append(list, f.name)
		}
	}
	return list
}

// underlayName is udp, or xdp with the kind of sockets, such as "xdp zerocopy".
func underlayName(way *config.UnderlayReport) string {
	if way.Way != config.UnderlayXDP {
		return config.UnderlayUDP.String()
	}
	return strings.TrimSuffix(way.Way.String()+" "+way.How, " ")
}
