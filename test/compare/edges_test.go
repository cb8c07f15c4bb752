// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"bytes"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// queueDepth is how many elements wait in a queue: never less than a path has under way.
const queueDepth = 2 * window

// socketBuffer is how many bytes wait in the network for a receiver, and so how many it gets at once: what ropewalk gives
// its sockets. Without it a receiver of trains would be handed more than its caches hold.
const socketBuffer = 512 << 10

// edges are the two ends of a device, with a queue per lane.
type edges struct {
	host     []*queue // packets from the host, to be read from the TUN
	cable    []*queue // datagrams from the network
	received *tally   // packets that were written to the TUN
	out      *outlet  // where the network takes what is sent
}

func newEdges(lanes int) *edges {
	e := &edges{received: newTally(), out: &outlet{sent: newTally(), handshake: make(chan []byte, 16)}}
	for range lanes {
		e.host, e.cable = append(e.host, newQueue(queueDepth, 0)), append(e.cable, newQueue(queueDepth, socketBuffer))
	}
	return e
}

// join connects two devices' edges with each other.
func join(a, b *edges) { a.out.to, b.out.to = b.cable, a.cable }

// outlet is where a device sends to: the other end of the cable, or, when there is none, nowhere.
type outlet struct {
	to        []*queue
	sent      *tally      // data messages
	handshake chan []byte // other messages
}

// send takes n elements of datagrams, each in parts.
func (o *outlet) send(lane, n int, at func(i int) (parts [][]byte, segSize, segments int)) {
	if o.to != nil {
		o.to[lane%len(o.to)].put(n, func(i int, p *element) {
			parts, segSize, _ := at(i)
			p.copyFrom(parts, segSize)
		})
		return
	}
	packets := 0
	for i := range n {
		parts, _, segments := at(i)
		switch first := parts[0]; {
		case wire.Type(binary.LittleEndian.Uint32(first)) != wire.TypeData:
			select {
			case o.handshake <- bytes.Clone(first):
			default: // nobody takes them once the session stands: a device that asks for another must not stall
			}
		case !wire.IsKeepalive(first):
			packets += segments
			o.sent.keep(parts)
		}
	}
	o.sent.add(packets)
}

// tally counts packets that came out somewhere, from any number of goroutines.
type tally struct {
	n, target atomic.Int64
	reached   chan struct{}

	mu   sync.Mutex
	kept func(parts [][]byte) // for tests, which look at what they count
}

func newTally() *tally { return &tally{reached: make(chan struct{}, 1)} }

func (t *tally) add(n int) {
	now, target := t.n.Add(int64(n)), t.target.Load()
	if now >= target && now-int64(n) < target {
		select {
		case t.reached <- struct{}{}:
		default:
		}
	}
}

func (t *tally) keep(parts [][]byte) {
	if t.kept == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept(parts)
}

// await waits until n packets have come out in all, or patience ends.
func (t *tally) await(tb testing.TB, n int64, patience <-chan time.Time) {
	tb.Helper()
	for t.target.Store(n); t.n.Load() < n; {
		select {
		case <-t.reached:
		case <-patience:
			tb.Fatalf("%d packets came out, want %d", t.n.Load(), n)
		}
	}
}

// patience bounds every wait: far beyond what a loaded machine needs.
const patience = time.Minute
