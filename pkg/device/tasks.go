// SPDX-License-Identifier: Apache-2.0

package device

import "sync"

// taskQueue are the peers that wait for a worker, first come, first served. Each is there at most once. They take memory only
// while they wait: a channel of peers would take half a megabyte.
type taskQueue struct {
	waiting chan struct{} // a token for each peer: it has no size, and room for all
	mu      sync.Mutex
	peers   []*Peer // those before first have gone
	first   int
}

// minTaskCapacity is the room, in peers, that is kept when none waits.
const minTaskCapacity = 64

func (q *taskQueue) init() { q.waiting = make(chan struct{}, MaxPeers) }

// put does not block.
func (q *taskQueue) put(p *Peer) {
	q.mu.Lock()
	q.peers = append(q.peers, p)
	q.mu.Unlock()
	q.waiting <- struct{}{}
}

// take is for whoever has taken a token.
func (q *taskQueue) take() *Peer {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.peers[q.first]
	q.peers[q.first] = nil
	q.first++
	if 2*q.first >= len(q.peers) { // each peer is moved once, on the average
		n := copy(q.peers, q.peers[q.first:])
		clear(q.peers[n:])
		q.peers, q.first = q.peers[:n], 0
	}
	if len(q.peers) == 0 && cap(q.peers) > minTaskCapacity {
		q.peers = nil
	}
	return p
}
