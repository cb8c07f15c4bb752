// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"math"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Bound is the throughput that one resource allows if all others are unlimited.
type Bound struct {
	Resource      string
	BitsPerSecond float64
}

// Bounds returns the bound of each resource for c's elephants, the lowest first. Where hashes decide how many lanes or queues are
// used, it takes the expected number.
func Bounds(c Config) ([]Bound, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	b := &bounds{Config: &c, flows: float64(c.Elephants)}
	serial := max(c.Lines.WindowElement+c.Lines.WindowPacket*float64(c.Train.Packets), 0)
	tx, rx := b.lanes()
	b.add(ResourceTxLane, b.txLanes(), tx)
	b.add(ResourceRxLane, b.rxLanes(), rx)
	if c.HelpWrite {
		b.add(ResourceWriter, b.txLanes(), c.Costs.Of(c.Train, TUNWrite)+c.HandBack)
	}
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

// add adds the bound of n servers that each need ns nanoseconds per train.
func (b *bounds) add(resource string, n, ns float64) {
	if ns > 0 {
		b.list = append(b.list, Bound{resource, n * float64(b.Train.Bytes) * 8e9 / ns})
	}
}

// cores adds the bounds of the CPU cores: each end handles a train and its acknowledgement.
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
	b.add(ResourceReceiver, float64(b.Receiver.Cores), receive)
}

// lanes returns the time of the transmit lane and of the receive lane per train.
func (b *bounds) lanes() (tx, rx float64) {
	tx, rx = b.Costs.Of(b.Train, TUNRead, Split, Send), b.Costs.Of(b.Train, Receive, Merge, TUNWrite)
	switch {
	case !b.Help:
		tx += b.Costs.Of(b.Train, Seal)
		rx += b.Costs.Of(b.Train, Open)
	case b.HelpSplitMerge:
		tx -= b.Costs.Of(b.Train, Split)
		rx -= b.Costs.Of(b.Train, Merge)
	}
	if b.Help && !b.HelpSplitMerge {
		rx -= b.Costs.sums(b.Train)
	}
	if b.HelpWrite {
		rx -= b.Costs.Of(b.Train, TUNWrite)
	}
	if b.HelpReceive { // by one thread at a time
		rx = max(rx-b.Costs.Of(b.Train, Receive), b.Costs.Of(b.Train, Receive))
	}
	return tx, rx
}

func (b *bounds) txLanes() float64 {
	if b.SteerEven {
		return min(b.flows, float64(b.Lanes))
	}
	return occupied(b.Lanes, b.flows)
}

// usedPorts returns the number of source ports that elephants use. The least loaded port is a different one for each flow.
func (b *bounds) usedPorts() float64 {
	switch b.Spread {
	case Off:
		return min(b.flows, 1)
	case Planned:
		return min(b.flows, float64(b.Receiver.Queues), spread.MaxPorts)
	}
	return min(b.flows, spread.MaxPorts)
}

func (b *bounds) queues() float64 {
	if b.Spread == Planned {
		return b.usedPorts()
	}
	return occupied(b.Receiver.Queues, b.usedPorts())
}

func (b *bounds) rxLanes() float64 {
	if b.LaneByHash {
		return occupied(b.Receiver.Lanes, b.usedPorts())
	}
	return min(b.usedPorts(), float64(b.Receiver.Lanes))
}

// occupied returns the expected number of n bins that hold at least one ball, if the balls fall at random.
func occupied(n int, balls float64) float64 {
	return float64(n) * (1 - math.Pow(1-1/float64(n), balls))
}
