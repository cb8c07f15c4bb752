// SPDX-License-Identifier: Apache-2.0

package device

import (
	"sync"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

const (
	// handshakeQueueLen is the number of handshake messages that may wait for a worker.
	handshakeQueueLen = 4096
	// underLoadLen is the number of waiting messages from which the device is under load (WireGuard paper §5.3).
	underLoadLen = handshakeQueueLen / 8
	// underLoadFor is how long, in ns, the device stays under load after that.
	underLoadFor = 1e9
)

// runWorker handles handshake messages and peers' tasks until the device stops.
func (d *Device) runWorker() {
	for {
		select {
		case <-d.stop:
			return
		case m := <-d.handshakes.messages:
			d.engine.SlowDrops.Add(d.handleQueued(m), 1)
		case <-d.tasks.waiting:
			d.tasks.take().runTasks()
		}
	}
}

// Handshake implements engine.Control: it copies a handshake message to the queue.
func (d *Device) Handshake(msg []byte, from underlay.Endpoint) drop.Reason {
	m := d.handshakes.free.Get().(*handshakeMessage)
	m.from, m.n = from, len(msg)
	if copy(m.msg[:], msg) < len(msg) {
		d.handshakes.free.Put(m)
		return drop.RXBadLength
	}
	select {
	case d.handshakes.messages <- m:
		return drop.None
	default:
		d.handshakes.free.Put(m)
		return drop.HSQueueFull
	}
}

// handleQueued handles a message from the queue.
func (d *Device) handleQueued(m *handshakeMessage) drop.Reason {
	reason := d.handleHandshake(m.msg[:m.n], m.from)
	d.handshakes.free.Put(m)
	return reason
}

// handshakeMessage is one handshake or cookie message, copied out of a lane's buffer.
type handshakeMessage struct {
	from underlay.Endpoint
	n    int
	msg  [wire.InitiationSize]byte
}

// handshakeQueue takes handshake messages from the lanes without blocking them.
type handshakeQueue struct {
	messages       chan *handshakeMessage
	free           sync.Pool // of *handshakeMessage: an idle device holds none
	underLoadUntil atomic.Int64
}

func (b *handshakeQueue) init() {
	b.messages = make(chan *handshakeMessage, handshakeQueueLen)
	b.free.New = func() any { return new(handshakeMessage) }
}

// underLoad reports whether handshake messages arrive faster than workers handle them.
func (b *handshakeQueue) underLoad(now int64) bool {
	if len(b.messages) >= underLoadLen {
		b.underLoadUntil.Store(now + underLoadFor)
		return true
	}
	return now < b.underLoadUntil.Load()
}

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
