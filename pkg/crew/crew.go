// SPDX-License-Identifier: Apache-2.0

// Package crew has workers without a lane, for lanes that have several trains at once: one flow is one lane, and one core
// could not seal or open all of it.
//
// A lane has a Desk. It puts pieces of work on it, does something else meanwhile, and collects them in the order in which it
// put them there, whoever did them. Nothing that is on a desk waits for a worker: what nobody has begun when the lane comes
// to need it, the lane does itself. So the crew can be too small, busy or asleep, and costs throughput at worst.
//
// A worker costs more than it saves where no core is idle: another core's caches take half as long as sealing does, and
// waking takes a third. So a desk is used only by a lane that has been behind for a while. Workers are polite: they run as batch
// jobs, which preempt nobody, and offer their core to others while they look for work. And each desk keeps count of what
// became of its work, and closes when workers do not begin in time, lose their cores to others, or keep the lane waiting: for
// 10 ms at first, then twice as long each time, up to 1 s.
package crew

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/session"
)

// MaxWorkers is the largest crew.
const MaxWorkers = 64

// Work is what a lane may put on its desk.
type Work interface {
	// Do does the work, with a scratch of whoever does it. It is called once, by any goroutine, before Desk.Collect returns
	// the work, and happens after everything that came before Desk.Offer. It must not block.
	Do(s *session.Scratch)
}

// Config says what a crew is like.
type Config struct {
	// Workers is their number, at most MaxWorkers. Each has a thread of its own and a descriptor.
	Workers int
	// Linger has workers hold their Go processors while there is traffic, as package linger says. GOMAXPROCS must count them.
	Linger bool
}

// Crew is workers. A nil Crew has none, and its desks never open.
type Crew struct {
	workers  []*worker
	stopping atomic.Bool
	ended    sync.WaitGroup
}

// Start returns a crew that is ready, or nil for one of no workers. The error is that descriptors have run out.
func Start(cfg Config) (*Crew, error) {
	if cfg.Workers < 1 {
		return nil, nil
	}
	c := &Crew{}
	for i := range min(cfg.Workers, MaxWorkers) {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("making a worker's eventfd: %w", err)
		}
		w := &worker{
			crew: c, name: "rw-worker" + strconv.Itoa(i), event: fd, one: [8]byte{1}, linger: cfg.Linger, patience: maxPatience,
		}
		c.workers = append(c.workers, w)
		c.ended.Go(w.run)
	}
	return c, nil
}

// Workers is their number.
func (c *Crew) Workers() int {
	if c == nil {
		return 0
	}
	return len(c.workers)
}

// Close ends the workers. It must be called once, when no lane uses its desk any more.
func (c *Crew) Close() {
	if c == nil {
		return
	}
	c.stopping.Store(true)
	for _, w := range c.workers {
		w.wake()
	}
	c.ended.Wait()
	for _, w := range c.workers {
		_ = unix.Close(w.event)
	}
}

// asks is how many workers a desk asks before it gives up looking for a free one.
const asks = 4

// call has a worker come to d, if one is free of those that are asked. Who came last is asked first the next time, and
// after those who were all busy the others are.
func (c *Crew) call(d *Desk) {
	for range min(asks, len(c.workers)) {
		if c.workers[d.asked].call(d) {
			return
		}
		d.asked = (d.asked + 1) % len(c.workers)
	}
}
