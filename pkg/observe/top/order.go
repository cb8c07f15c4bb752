// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"slices"
	"strconv"
)

// Order is the sort order of rows. The zero Order is ByDefault.
type Order uint8

// The orders.
const (
	ByDefault  Order = iota // peers and flows by traffic, other rows by number
	ByRate                  // highest traffic or load first
	ByReceived              // most received first
	BySent                  // most sent first
	ByName                  // by name or number
	orderCount
)

// String returns the name: default, rate, rx, tx or name.
func (o Order) String() string {
	return [...]string{"default", "rate", "rx", "tx", "name"}[min(o, ByName)]
}

// Next returns the order after o, cyclically.
func (o Order) Next() Order { return (o + 1) % orderCount }

// Sort sorts the rows of all tables except drops. Ties are broken by name, so that rows do not jump.
func (f *Frame) Sort(o Order, reverse bool) {
	slices.SortStableFunc(f.Peers, func(a, b Peer) int {
		return cmp.Or(reverseIf(cmp.Or(o, ByRate).compare(peerKeys(&a), peerKeys(&b)), reverse), cmp.Compare(a.PublicKey, b.PublicKey))
	})
	slices.SortStableFunc(f.Lanes, func(a, b Lane) int { return reverseIf(o.compare(laneKeys(&a), laneKeys(&b)), reverse) })
	slices.SortStableFunc(f.Flows, func(a, b InnerFlow) int {
		return cmp.Or(reverseIf(cmp.Or(o, ByRate).compare(flowKeys(&a), flowKeys(&b)), reverse), a.compareID(&b))
	})
	slices.SortStableFunc(f.Queues, func(a, b Queue) int { return reverseIf(o.compare(queueKeys(&a), queueKeys(&b)), reverse) })
	slices.SortStableFunc(f.Cores, func(a, b Core) int { return reverseIf(o.compare(coreKeys(&a), coreKeys(&b)), reverse) })
}

func reverseIf(c int, reverse bool) int {
	if reverse {
		return -c
	}
	return c
}

// keys are the sort keys of a row.
type keys struct {
	rate, received, sent float64
	name                 string
	number               int
}

func (o Order) compare(a, b keys) int {
	switch o {
	case ByRate:
		return cmp.Compare(b.rate, a.rate)
	case ByReceived:
		return cmp.Compare(b.received, a.received)
	case BySent:
		return cmp.Compare(b.sent, a.sent)
	default:
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.number, b.number))
	}
}

func peerKeys(p *Peer) keys {
	return keys{rate: p.Rate(), received: p.RxRate, sent: p.TxRate, name: p.PublicKey}
}

func flowKeys(f *InnerFlow) keys {
	k := keys{rate: f.ByteRate, name: f.Source}
	if f.Direction == "rx" {
		k.received = f.ByteRate
	} else {
		k.sent = f.ByteRate
	}
	return k
}

func laneKeys(l *Lane) keys {
	k := keys{rate: l.Rate(), received: l.Rx.ByteRate, sent: l.Tx.ByteRate}
	if l.Name == slowLane {
		k.name = l.Name // after the others, whose name is empty here
	}
	k.number, _ = strconv.Atoi(l.Name) // 0 for the slow one
	return k
}

func queueKeys(q *Queue) keys {
	return keys{rate: q.Share, received: q.Rx.PacketRate, sent: q.Tx.PacketRate, name: q.Device, number: q.Queue}
}

// coreKeys returns keys whose received and sent are the columns NET_RX/s and SOFTIRQ: a CPU has no traffic of its own.
func coreKeys(c *Core) keys {
	return keys{rate: c.Busy, received: c.NetRx, sent: c.SoftIRQ, number: c.CPU}
}
