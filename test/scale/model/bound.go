// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"math"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Bound is the most that one resource lets pass, all others being without limit.
type Bound struct {
	Resource      string
	BitsPerSecond float64
}

// Bounds returns what each resource allows for c's elephants, the tightest first. Where hashes decide how many of a
// kind are in use it is the number to be expected.
func Bounds(c Config) ([]Bound, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	b := &bounds{Config: &c, flows: float64(c.Elephants)}
	serial := max(c.Lines.WindowElement+c.Lines.WindowPacket*float64(c.Train.Packets), 0)
	tx, rx := b.lanes()
	b.add(ResourceTxLane, b.txLanes(), tx)
	b.add(ResourceRxLane, b.rxLanes(), rx)
	if !c.Cable {
		b.add(ResourceQueue, b.queues(), c.Costs.Of(c.Train, Softirq))
	}
	b.add(ResourceAppSend, b.flows, c.Costs.Of(c.Train, AppSend))
	b.add(ResourceAppReceive, b.flows, c.Costs.Of(c.Train, AppReceive))
	b.add(ResourceNonce, 1, c.Lines.Nonce)
	b.add(ResourceWindow, 1, serial)
	b.add(ResourceKernel, 1, c.Lines.Send)
	b.cores()
	if c.Link > 0 {
		b.list = append(b.list, Bound{ResourceLink, c.Link})
	}
	slices.SortStableFunc(b.list, func(x, y Bound) int { return cmp.Compare(x.BitsPerSecond, y.BitsPerSecond) })
	return b.list, nil
}

type bounds struct {
	*Config
	flows float64
	list  []Bound
}

// add is n servers that take so many ns for a train.
func (b *bounds) add(resource string, n, ns float64) {
	if ns > 0 {
		b.list = append(b.list, Bound{resource, n * float64(b.Train.Bytes) * 8e9 / ns})
	}
}

// Of the stages that each end goes through for a train and its acknowledgement.
func (b *bounds) cores() {
	send := b.Costs.Of(b.Train, AppSend, TUNRead, Split, Seal, Send) + b.Costs.Of(b.Ack, Receive, Open, Merge, TUNWrite)
	receive := b.Costs.Of(b.Train, Receive, Open, Merge, TUNWrite, AppReceive) + b.Costs.Of(b.Ack, TUNRead, Split, Seal, Send)
	if !b.Cable {
		send += b.Costs.Of(b.Ack, Softirq)
		receive += b.Costs.Of(b.Train, Softirq)
	}
	if b.OneMachine {
		b.add(ResourceSender, float64(b.Cores), send+receive)
		return
	}
	b.add(ResourceSender, float64(b.Cores), send)
	b.add(ResourceReceiver, float64(b.Cores), receive)
}

// lanes is what a train takes of one lane, out and in.
func (b *bounds) lanes() (tx, rx float64) {
	tx, rx = b.Costs.Of(b.Train, TUNRead, Split, Send), b.Costs.Of(b.Train, Receive, Merge, TUNWrite)
	switch {
	case !b.Help:
		tx += b.Costs.Of(b.Train, Seal)
		rx += b.Costs.Of(b.Train, Open)
	case b.HelpMore:
		tx -= b.Costs.Of(b.Train, Split)
		rx -= b.Costs.Of(b.Train, Merge)
	}
	return tx, rx
}

func (b *bounds) txLanes() float64 {
	if b.SteerEven {
		return min(b.flows, float64(b.Lanes))
	}
	return occupied(b.Lanes, b.flows)
}

// usedPorts is how many source ports elephants use: the least loaded is another one each time.
func (b *bounds) usedPorts() float64 {
	switch b.Spread {
	case Off:
		return min(b.flows, 1)
	case Planned:
		return min(b.flows, float64(b.Queues), spread.MaxPorts)
	}
	return min(b.flows, spread.MaxPorts)
}

func (b *bounds) queues() float64 {
	if b.Spread == Planned {
		return b.usedPorts()
	}
	return occupied(b.Queues, b.usedPorts())
}

func (b *bounds) rxLanes() float64 {
	if b.LaneByHash {
		return occupied(b.Lanes, b.usedPorts())
	}
	return min(b.usedPorts(), float64(b.Lanes))
}

// occupied is how many of n bins are expected to hold one of balls that fall at random.
func occupied(n int, balls float64) float64 {
	return float64(n) * (1 - math.Pow(1-1/float64(n), balls))
}
