// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"
)

// Order is how rows are sorted. The zero Order is ByDefault.
type Order uint8

// The orders.
const (
	ByDefault  Order = iota // peers with most traffic first, all else by number
	ByRate                  // most traffic, or work, first
	ByReceived              // most received first
	BySent                  // most sent first
	ByName                  // by name or number
	orderCount
)

// String returns the name: default, rate, received, sent or name.
func (o Order) String() string {
	return [...]string{"default", "rate", "received", "sent", "name"}[min(o, ByName)]
}

// Next is the order after o, around and around.
func (o Order) Next() Order { return (o + 1) % orderCount }

// Sort sorts the rows of all tables but drops. Ties are broken so that rows do not jump.
func (f *Frame) Sort(o Order, reverse bool) {
	slices.SortStableFunc(f.Peers, func(a, b Peer) int {
		by := o
		if o == ByDefault {
			by = ByRate
		}
		return cmp.Or(turned(by.compare(peerKeys(&a), peerKeys(&b)), reverse), cmp.Compare(a.PublicKey, b.PublicKey))
	})
	slices.SortStableFunc(f.Lanes, func(a, b Lane) int { return turned(o.compare(laneKeys(&a), laneKeys(&b)), reverse) })
	slices.SortStableFunc(f.Queues, func(a, b Queue) int { return turned(o.compare(queueKeys(&a), queueKeys(&b)), reverse) })
	slices.SortStableFunc(f.Cores, func(a, b Core) int { return turned(o.compare(coreKeys(&a), coreKeys(&b)), reverse) })
}

func turned(c int, reverse bool) int {
	if reverse {
		return -c
	}
	return c
}

// keys are what a row can be sorted by.
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

func laneKeys(l *Lane) keys {
	k := keys{rate: l.Rate(), received: l.Rx.ByteRate, sent: l.Tx.ByteRate}
	if l.Name == slowLane {
		k.name = l.Name // after the others
	}
	k.number = number(l.Name)
	return k
}

func queueKeys(q *Queue) keys {
	return keys{rate: q.Share, received: q.Rx.PacketRate, sent: q.Tx.PacketRate, name: q.Device, number: q.Queue}
}

func coreKeys(c *Core) keys {
	return keys{rate: c.Busy, received: c.NetRx, sent: c.SoftIRQ, number: c.CPU}
}

// number is 0 for what is not one.
func number(s string) (n int) {
	for _, c := range s {
		if c < '0' || c > '9' || n > 1<<20 {
			return 0
		}
		n = 10*n + int(c-'0')
	}
	return n
}
