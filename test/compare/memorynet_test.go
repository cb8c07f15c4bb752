// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"bytes"
	"encoding/binary"
	"flag"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// queueDepth is the number of elements that fit into a queue: more than a path ever has in flight.
const queueDepth = 2 * window

// socketBuffer is the number of bytes that wait in the network for a receiver, and that it gets in one call. It is the size of
// ropewalk's socket buffers. A larger one would not fit into the caches.
const socketBuffer = 512 << 10

// memoryNet is the in-memory TUN and the in-memory network of a device, with one queue per lane.
type memoryNet struct {
	host     []*queue       // packets to be read from the TUN
	network  []*queue       // datagrams to be received
	received *packetCounter // packets written to the TUN
	out      *transmitter   // datagrams sent
}

func newMemoryNet(lanes int) *memoryNet {
	e := &memoryNet{received: newPacketCounter(), out: &transmitter{sent: newPacketCounter(), handshake: make(chan []byte, 16)}}
	for range lanes {
		e.host, e.network = append(e.host, newQueue(queueDepth, 0)), append(e.network, newQueue(queueDepth, socketBuffer))
	}
	return e
}

// connect connects the networks of two devices.
func connect(a, b *memoryNet) { a.out.to, b.out.to = b.network, a.network }

// transmitter receives the datagrams that a device sends. It passes them to the other device, or counts and discards them if there
// is none.
type transmitter struct {
	to        []*queue
	sent      *packetCounter // data messages
	handshake chan []byte    // other messages
}

// send sends n elements. at returns the parts of each.
func (o *transmitter) send(lane, n int, at func(i int) (parts [][]byte, segSize, segments int)) {
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
			default: // after the handshake nobody reads the channel, and a device that starts another handshake must not block
			}
		case len(first) != wire.KeepaliveSize:
			packets += segments
			o.sent.inspect(parts)
		}
	}
	o.sent.add(packets)
}

// packetCounter counts packets. Any goroutine may add to it.
type packetCounter struct {
	n, target atomic.Int64
	reached   chan struct{}

	mu        sync.Mutex
	inspector func(parts [][]byte) // if set, called with each element; for tests
}

func newPacketCounter() *packetCounter { return &packetCounter{reached: make(chan struct{}, 1)} }

func (t *packetCounter) add(n int) {
	now, target := t.n.Add(int64(n)), t.target.Load()
	if now >= target && now-int64(n) < target {
		select {
		case t.reached <- struct{}{}:
		default:
		}
	}
}

func (t *packetCounter) inspect(parts [][]byte) {
	if t.inspector == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inspector(parts)
}

// await waits until n packets were counted in all, or the channel receives.
func (t *packetCounter) await(tb testing.TB, n int64, patience <-chan time.Time) {
	tb.Helper()
	for t.target.Store(n); t.n.Load() < n; {
		select {
		case <-t.reached:
		case <-patience:
			tb.Fatalf("got %d packets, want %d", t.n.Load(), n)
		}
	}
}

// waitTimeout bounds every wait. It is long because tests also run on busy machines.
const waitTimeout = time.Minute

// fuzzTimeout bounds an input that is fuzzed. A worker of Go's fuzzing engine panics after 10 s, without the test's message.
const fuzzTimeout = 8 * time.Second

// inputDeadline returns when the comparison of an input that begins now must have ended.
func inputDeadline() time.Time {
	if f := flag.Lookup("test.fuzz"); f != nil && f.Value.String() != "" {
		return time.Now().Add(fuzzTimeout)
	}
	return time.Now().Add(waitTimeout)
}
