// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"bytes"
	"context"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ropewalk/ropewalk/pkg/offload"
)

// FakeConfig says what a Fake is like; the zero value is one queue with an MTU of DefaultMTU.
type FakeConfig struct {
	Name   string
	Queues int
	MTU    int
	Depth  int // elements that wait in each direction of each queue; 0 is 1024
	Features
}

// Fake is an in-memory Device for tests, and the host behind it: Inject is the host sending into the interface, Receive
// is what the host gets from it. It is up from the start. All methods may be called by any goroutine.
type Fake struct {
	config FakeConfig
	queues []*fakeQueue
	events chan Event
	up     atomic.Bool
	limit  atomic.Int64

	mu     sync.Mutex // guards what follows, and sending to events
	state  Event
	closed bool
}

var _ Device = (*Fake)(nil)

// NewFake returns a fake device.
func NewFake(c FakeConfig) *Fake {
	c.Queues = max(c.Queues, 1)
	if c.Name == "" {
		c.Name = "fake0"
	}
	if c.MTU == 0 {
		c.MTU = DefaultMTU
	}
	if c.Depth == 0 {
		c.Depth = 1024
	}
	f := &Fake{config: c, events: make(chan Event, 1)}
	for range c.Queues {
		f.queues = append(f.queues, &fakeQueue{device: f, in: newFakeRing(c.Depth), out: newFakeRing(c.Depth)})
	}
	f.change(func(e *Event) { *e = Event{Up: true, MTU: c.MTU} })
	return f
}

// Name implements Device.
func (f *Fake) Name() string { return f.config.Name }

// Queues implements Device.
func (f *Fake) Queues() []Queue {
	queues := make([]Queue, len(f.queues))
	for i, q := range f.queues {
		queues[i] = q
	}
	return queues
}

// Features implements Device.
func (f *Fake) Features() Features { return f.config.Features }

// Events implements Device.
func (f *Fake) Events() <-chan Event { return f.events }

// SetTrainLimit implements Device; TrainLimit returns what was set last.
func (f *Fake) SetTrainLimit(bytes int) error {
	f.limit.Store(int64(bytes))
	return nil
}

// TrainLimit is the limit set last, 0 when none was.
func (f *Fake) TrainLimit() int { return int(f.limit.Load()) }

// Close implements Device.
func (f *Fake) Close() error {
	f.Delete()
	return nil
}

// Delete is someone else deleting the interface.
func (f *Fake) Delete() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.closed = true
	close(f.events)
	for _, q := range f.queues {
		q.in.close()
		q.out.close()
	}
}

// SetUp is the host setting the interface up or down.
func (f *Fake) SetUp(up bool) { f.change(func(e *Event) { e.Up = up }) }

// SetMTU is the host setting the MTU.
func (f *Fake) SetMTU(mtu int) { f.change(func(e *Event) { e.MTU = mtu }) }

func (f *Fake) change(edit func(*Event)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.state
	edit(&f.state)
	if f.closed || f.state == before {
		return
	}
	f.up.Store(f.state.Up)
	select {
	case <-f.events:
	default:
	}
	f.events <- f.state
}

// Inject makes an element, a virtio-net header and a packet, appear at a queue. A full queue is ENOBUFS.
func (f *Fake) Inject(queue int, element []byte) error {
	if !f.queues[queue].in.push(element) {
		return syscall.ENOBUFS
	}
	return nil
}

// Receive returns the next element written to a queue, header included. It waits for one until ctx is done; after Close
// it returns os.ErrClosed.
func (f *Fake) Receive(ctx context.Context, queue int) ([]byte, error) {
	r := f.queues[queue].out
	defer context.AfterFunc(ctx, r.wake)()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.await(func() bool { return ctx.Err() != nil }) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return nil, os.ErrClosed
	}
	element := bytes.Clone(r.slots[r.head])
	r.pop(nil)
	return element, nil
}

// TryReceive copies the next element written to a queue into buf, without waiting or allocating, and returns its
// length; 0 when there is none.
func (f *Fake) TryReceive(queue int, buf []byte) int {
	r := f.queues[queue].out
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count == 0 {
		return 0
	}
	return r.pop(buf)
}

// fakeQueue is one queue of a Fake: in is what the host sent, out what it gets.
type fakeQueue struct {
	device  *Fake
	in, out *fakeRing
}

// Read implements Queue.
func (q *fakeQueue) Read(bufs [][]byte, sizes []int) (n int, err error) {
	q.in.mu.Lock()
	defer q.in.mu.Unlock()
	if len(bufs) == 0 {
		return 0, nil
	}
	if !q.in.await(nil) {
		return 0, os.ErrClosed
	}
	return q.drain(bufs, sizes), nil
}

// TryRead implements Queue.
func (q *fakeQueue) TryRead(bufs [][]byte, sizes []int) int {
	q.in.mu.Lock()
	defer q.in.mu.Unlock()
	if q.in.closed {
		return 0
	}
	return q.drain(bufs, sizes)
}

// drain is called with q.in.mu held.
func (q *fakeQueue) drain(bufs [][]byte, sizes []int) (n int) {
	for n < len(bufs) && q.in.count > 0 {
		sizes[n] = q.in.pop(bufs[n])
		n++
		if sizes[n-1] > bigElement {
			break
		}
	}
	return n
}

// Write implements Queue. Unlike a real TUN, which never runs full this way, it returns ENOBUFS when nobody receives.
func (q *fakeQueue) Write(parts [][]byte) error {
	if err := q.check(parts); err != nil {
		return err
	}
	if !q.out.push(parts...) {
		return q.refusal()
	}
	return nil
}

// Inject implements Queue.
func (q *fakeQueue) Inject(parts [][]byte) error { return q.Write(parts) }

// check makes the mistakes fail that fail at the kernel.
func (q *fakeQueue) check(parts [][]byte) error {
	size, version := 0, byte(0)
	for _, part := range parts {
		if first := offload.VnetHdrLen - size; first >= 0 && first < len(part) {
			version = part[first] >> 4
		}
		size += len(part)
	}
	switch {
	case len(parts) > MaxParts:
		return ErrTooManyParts
	case q.isClosed():
		return os.ErrClosed
	case version != 4 && version != 6 || size > MaxElement:
		return syscall.EINVAL
	case !q.device.up.Load():
		return syscall.EIO
	}
	return nil
}

func (q *fakeQueue) isClosed() bool {
	q.out.mu.Lock()
	defer q.out.mu.Unlock()
	return q.out.closed
}

func (q *fakeQueue) refusal() error {
	if q.isClosed() {
		return os.ErrClosed
	}
	return syscall.ENOBUFS
}
