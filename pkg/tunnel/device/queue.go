// SPDX-License-Identifier: Apache-2.0

package device

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

const (
	// handshakeQueueLen is the number of handshake messages that may wait for a worker.
	handshakeQueueLen = 4096
	// underLoadLen is the number of waiting messages from which the device is under load (WireGuard paper §5.3).
	underLoadLen = handshakeQueueLen / 8
	// underLoadFor is how long, in ns, the device stays under load after that.
	underLoadFor = 1e9
	// reservedQueueLen is the number of further messages that may wait if they deserve the reserved share (see triage).
	reservedQueueLen = 512
	// prefixGroups is the number of groups of source prefixes that share handshakeQueueLen.
	prefixGroups = 256
	// The length in bits of a source prefix that one sender may have.
	prefixLenIPv4, prefixLenIPv6 = 24, 48
)

// handshakeMessage is one handshake or cookie message, copied out of a lane's buffer.
type handshakeMessage struct {
	from     underlay.Endpoint
	standing standing
	group    *atomic.Int32 // the count of its source's group, nil in the reserved queue
	n        int
	msg      [wire.InitiationSize]byte
}

// handshakeQueue takes handshake messages from the lanes without blocking them. It is two queues. Workers choose between them at
// random, so neither can starve the other.
type handshakeQueue struct {
	messages       chan *handshakeMessage
	reserved       chan *handshakeMessage
	free           sync.Pool // of *handshakeMessage: an idle device holds none
	underLoadUntil atomic.Int64
	seed           maphash.Seed
	waiting        [prefixGroups]atomic.Int32 // in messages, by group of source prefixes
}

func (b *handshakeQueue) init() {
	b.messages = make(chan *handshakeMessage, handshakeQueueLen)
	b.reserved = make(chan *handshakeMessage, reservedQueueLen)
	b.free.New = func() any { return new(handshakeMessage) }
	b.seed = maphash.MakeSeed()
}

// put queues a message unless there is no room. In the shared queue a group of source prefixes may have as many messages as there is room
// left (Choudhury and Hahne, "Dynamic queue length thresholds", 1998): senders of one group fill half of it, and it is never
// full for others. The secret seed keeps a sender from choosing prefixes of a group.
func (b *handshakeQueue) put(m *handshakeMessage, reserve bool) bool {
	if reserve {
		m.group = nil
		select {
		case b.reserved <- m:
			return true
		default:
		}
	}
	m.group = &b.waiting[maphash.Comparable(b.seed, sourcePrefix(m.from.Dst.Addr()))%prefixGroups]
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
func (b *handshakeQueue) underLoad(now int64) bool {
	if len(b.messages)+len(b.reserved) >= underLoadLen {
		b.underLoadUntil.Store(now + underLoadFor)
		return true
	}
	return now < b.underLoadUntil.Load()
}

// The tasks that lanes and timers post for a worker.
const (
	taskHandshake uint32 = 1 << iota // a session is needed
	taskConfirm                      // the unconfirmed key pair was used
	taskTimer                        // a timer fired, or must be set again
	taskHello                        // a hello waits, or the peer was first heard from a source port
	taskRoamed                       // the peer's address or port changed
	taskProbe                        // a probe, or the answer to one, waits, or one may be due
	taskRoute                        // the route to the peer must be looked up
	taskSendGroup                    // data to the peer waits for a send buffer
	taskRenew                        // it is the peer's turn in renewals
	taskExchange                     // a part of a post-quantum exchange waits, or it is the peer's turn in exchanges
)

// post posts a task for a worker. It never blocks, since each peer is queued at most once.
func (p *Peer) post(task uint32) {
	for {
		old := p.requests.tasks.Load()
		if old&task == task {
			return
		}
		if !p.requests.tasks.CompareAndSwap(old, old|task) {
			continue
		}
		if old == 0 {
			p.dev.tasks.put(p)
		}
		return
	}
}

// Wake implements peer.Waker: traffic has started a timer for which the peer's timer is not set.
func (p *Peer) Wake() { p.post(taskTimer) }

// taskQueue holds the peers that wait for a worker, in FIFO order, each at most once. It takes memory only while peers wait:
// a channel of peers would take half a megabyte.
type taskQueue struct {
	waiting chan struct{} // a token for each peer; tokens have no size, so there is room for all
	mu      sync.Mutex
	peers   []*Peer // those before first were taken
	first   int
}

// minTaskCapacity is the capacity, in peers, that is kept when no peer waits.
const minTaskCapacity = 64

func (q *taskQueue) init() { q.waiting = make(chan struct{}, MaxPeers) }

// put appends p. It does not block.
func (q *taskQueue) put(p *Peer) {
	q.mu.Lock()
	q.peers = append(q.peers, p)
	q.mu.Unlock()
	q.waiting <- struct{}{}
}

// take removes the first peer. The caller must have received a token from waiting.
func (q *taskQueue) take() *Peer {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.peers[q.first]
	q.peers[q.first] = nil
	q.first++
	if 2*q.first >= len(q.peers) { // each peer is moved once on average
		n := copy(q.peers, q.peers[q.first:])
		clear(q.peers[n:])
		q.peers, q.first = q.peers[:n], 0
	}
	if len(q.peers) == 0 && cap(q.peers) > minTaskCapacity {
		q.peers = nil
	}
	return p
}
