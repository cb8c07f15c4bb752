// SPDX-License-Identifier: Apache-2.0

package devicetest

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/expect"
)

// burst is the number of trains that a lane sends before it waits until they have arrived. It is so
// small that no queue of the in-memory edges is ever full. The memory of the queues is soon as much
// as it will ever be.
const burst = 64

// Load is traffic in both directions between two hosts that must arrive whole and in order. Flows keep to their lane.
type Load struct {
	tb         testing.TB
	directions [2]*direction
}

// direction is one half of a Load.
type direction struct {
	from  *Host
	lanes [][]*loadFlow
	check flow.Checker
}

type loadFlow struct {
	flow.Flow
	sent atomic.Uint32
}

// NewLoad prepares traffic in the given number of flows per lane and direction. Both hosts have the same lanes.
func NewLoad(tb testing.TB, a, b *Host, flows int) *Load {
	l := &Load{tb: tb}
	for i, ends := range [][2]*Host{{a, b}, {b, a}} {
		d := &direction{from: ends[0]}
		for range a.TUN.Queues() {
			d.lanes = append(d.lanes, newFlows(ends, len(d.lanes)*flows, flows))
		}
		ends[1].Watch(func(_ int, e []byte) { d.take(tb, e) })
		l.directions[i] = d
	}
	return l
}

func newFlows(ends [2]*Host, first, n int) (flows []*loadFlow) {
	for i := range n {
		id := uint32(first + i)
		flows = append(flows, &loadFlow{Flow: flow.Flow{Ends: ends[0].To(ends[1], uint16(1000+id), i%2 == 1), ID: id}})
	}
	return flows
}

func (d *direction) take(tb testing.TB, train []byte) {
	if err := d.check.Take(train); err != nil {
		tb.Error(err)
	}
}

// Run sends n single packets and trains on each lane in each direction. It returns when all have arrived.
func (l *Load) Run(n int) {
	l.tb.Helper()
	var lanes sync.WaitGroup
	for _, d := range l.directions {
		for i := range d.lanes {
			lanes.Go(func() { l.send(d, i, n) })
		}
	}
	lanes.Wait()
	l.Drain()
}

// Drain waits until all has arrived that was sent before the call.
func (l *Load) Drain() {
	l.tb.Helper()
	for _, d := range l.directions {
		for _, flows := range d.lanes {
			l.drain(d, flows)
		}
	}
}

func (l *Load) drain(d *direction, flows []*loadFlow) {
	l.tb.Helper()
	for _, f := range flows {
		want := f.sent.Load()
		expect.Eventually(l.tb, "all that was sent has arrived", func() bool {
			return d.check.Seen(f.ID) >= want || l.tb.Failed()
		})
	}
}

// Packets is the number of packets that have arrived.
func (l *Load) Packets() uint64 { return l.directions[0].check.Total() + l.directions[1].check.Total() }

func (l *Load) send(d *direction, lane, n int) {
	rng := rand.New(rand.NewPCG(uint64(lane), uint64(n)))
	for i := range n {
		if i%burst == 0 {
			l.drain(d, d.lanes[lane])
		}
		f := d.lanes[lane][rng.IntN(len(d.lanes[lane]))]
		count, size := 1, 8+rng.IntN(1372)
		if rng.IntN(4) == 0 {
			count = 2 + rng.IntN(43)
		}
		f.sent.Add(uint32(count))
		if count == 1 {
			d.from.SendOn(lane, f.Next(size))
		} else {
			d.from.SendOn(lane, f.Train(count, size))
		}
	}
}
