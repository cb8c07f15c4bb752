// SPDX-License-Identifier: Apache-2.0

package tuntest

import (
	"bytes"
	"context"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
)

// FakeConfig configures a Fake. The zero value is one queue with an MTU of DefaultMTU.
type FakeConfig struct {
	Name   string
	Queues int
	MTU    int
	Depth  int // trains queued in each direction of each queue; 0 means 1024
	// QueueDrops is where the counter begins (DropCounter).
	QueueDrops uint64
	tun.Features
}

// Fake is an in-memory Device for tests, together with the host behind it. Inject sends from the host into the
// interface; Receive returns what the interface delivers to the host. The device is up from the start. All methods
// may be called by any goroutine.
type Fake struct {
	config FakeConfig
	queues []*fakeQueue
	events chan tun.Event
	up     atomic.Bool
	drops  atomic.Uint64

	mu     sync.Mutex // guards the fields below, and sending to events
	state  tun.Event
	closed bool
}

var (
	_ tun.Device      = (*Fake)(nil)
	_ tun.DropCounter = (*Fake)(nil)
)

// NewFake returns a fake device.
func NewFake(c FakeConfig) *Fake {
	c.Queues = max(c.Queues, 1)
	if c.Name == "" {
		c.Name = "fake0"
	}
	if c.MTU == 0 {
		c.MTU = tun.DefaultMTU
	}
	if c.Depth == 0 {
		c.Depth = 1024
	}
	f := &Fake{config: c, events: make(chan tun.Event, 1)}
	f.drops.Store(c.QueueDrops)
	for range c.Queues {
		f.queues = append(f.queues, &fakeQueue{device: f, in: newFakeRing(c.Depth), out: newFakeRing(c.Depth)})
	}
	f.change(func(e *tun.Event) { *e = tun.Event{Up: true, MTU: c.MTU} })
	return f
}

// Name implements Device.
func (f *Fake) Name() string { return f.config.Name }

// Queues implements Device.
func (f *Fake) Queues() []tun.Queue {
	queues := make([]tun.Queue, len(f.queues))
	for i, q := range f.queues {
		queues[i] = q
	}
	return queues
}

// Features implements Device.
func (f *Fake) Features() tun.Features { return f.config.Features }

// Events implements Device.
func (f *Fake) Events() <-chan tun.Event { return f.events }

// StopReading implements Device.
func (f *Fake) StopReading() error {
	for _, q := range f.queues {
		q.in.setStopped(true)
	}
	return nil
}

// ResumeReading implements Device.
func (f *Fake) ResumeReading() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return os.ErrClosed
	}
	for _, q := range f.queues {
		q.in.setStopped(false)
	}
	return nil
}

// Close implements Device.
func (f *Fake) Close() error {
	f.Delete()
	return nil
}

// Delete simulates the deletion of the interface by another program.
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

// SetUp simulates the host setting the interface up or down.
func (f *Fake) SetUp(up bool) { f.change(func(e *tun.Event) { e.Up = up }) }

// SetMTU simulates the host setting the MTU in bytes.
func (f *Fake) SetMTU(mtu int) { f.change(func(e *tun.Event) { e.MTU = mtu }) }

func (f *Fake) change(edit func(*tun.Event)) {
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

// Inject queues a train (a virtio-net header and a packet) for Read. It returns ENOBUFS when the queue is full.
func (f *Fake) Inject(queue int, train []byte) error {
	if !f.queues[queue].in.push(train) {
		f.drops.Add(1)
		return syscall.ENOBUFS
	}
	return nil
}

// QueueDrops implements DropCounter.
func (f *Fake) QueueDrops() uint64 { return f.drops.Load() }

// Receive returns the next train written to a queue, header included. It waits until ctx is done. After Close it
// returns what was written before, then os.ErrClosed.
func (f *Fake) Receive(ctx context.Context, queue int) ([]byte, error) {
	r := f.queues[queue].out
	defer context.AfterFunc(ctx, r.wake)()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.wait(func() bool { return ctx.Err() != nil }) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return nil, os.ErrClosed
	}
	train := bytes.Clone(r.slots[r.head])
	r.pop(nil)
	return train, nil
}

// TryReceive copies the next train written to a queue into buf and returns its length, 0 if there is none. It neither
// waits nor allocates.
func (f *Fake) TryReceive(queue int, buf []byte) int {
	r := f.queues[queue].out
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count == 0 {
		return 0
	}
	return r.pop(buf)
}

// fakeQueue is one queue of a Fake: in carries trains from the host, out carries trains to it.
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
	q.in.wait(q.in.ended)
	if q.in.ended() {
		return 0, os.ErrClosed
	}
	return q.drain(bufs, sizes), nil
}

// ReadOr implements Queue. It waits for a millisecond, not for descriptors.
func (q *fakeQueue) ReadOr(bufs [][]byte, sizes []int, _ []int32) (int, error) {
	if n := q.TryRead(bufs, sizes); n > 0 {
		return n, nil
	}
	time.Sleep(time.Millisecond)
	q.in.mu.Lock()
	defer q.in.mu.Unlock()
	if q.in.ended() {
		return 0, os.ErrClosed
	}
	return q.drain(bufs, sizes), nil
}

// TryRead implements Queue.
func (q *fakeQueue) TryRead(bufs [][]byte, sizes []int) int {
	q.in.mu.Lock()
	defer q.in.mu.Unlock()
	if q.in.ended() {
		return 0
	}
	return q.drain(bufs, sizes)
}

// drain reads until the ring is empty. q.in.mu must be held.
func (q *fakeQueue) drain(bufs [][]byte, sizes []int) (n int) {
	for n < len(bufs) && q.in.count > 0 {
		sizes[n] = q.in.pop(bufs[n])
		n++
		if sizes[n-1] > tun.BigTrain {
			break
		}
	}
	return n
}

// Write implements Queue. A real TUN never runs full in this direction; the fake returns ENOBUFS when nobody
// receives.
func (q *fakeQueue) Write(buffers [][]byte) error {
	if err := q.check(buffers); err != nil {
		return err
	}
	if !q.out.push(buffers...) {
		return q.fullErr()
	}
	return nil
}

// Inject implements Queue.
func (q *fakeQueue) Inject(buffers [][]byte) error { return q.Write(buffers) }

// check returns the kernel's error for invalid input.
func (q *fakeQueue) check(buffers [][]byte) error {
	size, version := 0, byte(0)
	for _, b := range buffers {
		if first := offload.VnetHdrLen - size; first >= 0 && first < len(b) {
			version = b[first] >> 4
		}
		size += len(b)
	}
	switch {
	case len(buffers) > tun.MaxBuffers:
		return tun.ErrTooManyBuffers
	case q.isClosed():
		return os.ErrClosed
	case version != 4 && version != 6 || size > tun.MaxTrain:
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

func (q *fakeQueue) fullErr() error {
	if q.isClosed() {
		return os.ErrClosed
	}
	return syscall.ENOBUFS
}
