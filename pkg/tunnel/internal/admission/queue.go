// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

const (
	// QueueLen is the number of handshake messages that may wait for a worker.
	QueueLen = 4096
	// LoadLen is the number of waiting messages from which the device is under load (WireGuard paper §5.3).
	LoadLen = QueueLen / 8
	// underLoadFor is how long, in ns, the device stays under load after that.
	underLoadFor = 1e9
	// reservedLen is the number of further messages that may wait if they deserve the reserved share (see triage).
	reservedLen = 512
	// prefixGroups is the number of groups of source prefixes that share QueueLen.
	prefixGroups = 256
	// The length in bits of a source prefix that one sender may have.
	prefixLenIPv4, prefixLenIPv6 = 24, 48
)

// Message is one handshake or cookie message, copied out of a lane's buffer.
type Message struct {
	From     underlay.Endpoint
	standing standing
	group    *atomic.Int32 // the count of its source's group, nil in the reserved queue
	n        int
	bytes    [wire.InitiationSize]byte
}

// Bytes returns the message until Done.
func (m *Message) Bytes() []byte { return m.bytes[:m.n] }

// queue takes handshake messages from the lanes without blocking them. It is two queues. Workers choose
// between them at random, so neither can starve the other.
type queue struct {
	messages       chan *Message
	reserved       chan *Message
	free           sync.Pool // of *Message: an idle device holds none
	underLoadUntil atomic.Int64
	seed           maphash.Seed
	waiting        [prefixGroups]atomic.Int32 // in messages, by group of source prefixes
}

func (b *queue) init() {
	b.messages = make(chan *Message, QueueLen)
	b.reserved = make(chan *Message, reservedLen)
	b.free.New = func() any { return new(Message) }
	b.seed = maphash.MakeSeed()
}

// put queues a message unless there is no room. In the shared queue a group of source prefixes may
// have as many messages as there is room left. The rule is from Choudhury and Hahne, "Dynamic queue
// length thresholds", 1998. Senders of one group fill half of it, and it is never full for others.
// The secret seed keeps a sender from choosing prefixes of a group.
func (b *queue) put(m *Message, reserve bool) bool {
	if reserve {
		m.group = nil
		select {
		case b.reserved <- m:
			return true
		default:
		}
	}
	m.group = &b.waiting[maphash.Comparable(b.seed, sourcePrefix(m.From.Dst.Addr()))%prefixGroups]
	if int(m.group.Add(1)) <= cap(b.messages)-len(b.messages) {
		select {
		case b.messages <- m:
			return true
		default:
		}
	}
	m.group.Add(-1)
	return false
}

// sourcePrefix returns the prefix of an address that stands for one sender.
func sourcePrefix(addr netip.Addr) netip.Prefix {
	bits := prefixLenIPv6
	if addr.Is4() {
		bits = prefixLenIPv4
	}
	p, _ := addr.Prefix(bits) // invalid for an invalid address
	return p
}

// underLoad reports whether handshake messages arrive faster than workers handle them.
func (b *queue) underLoad(now int64) bool {
	if len(b.messages)+len(b.reserved) >= LoadLen {
		b.underLoadUntil.Store(now + underLoadFor)
		return true
	}
	return now < b.underLoadUntil.Load()
}
