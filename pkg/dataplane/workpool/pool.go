// SPDX-License-Identifier: Apache-2.0

package workpool

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/busypoll"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// MaxWorkers is the largest number of workers in a pool.
const MaxWorkers = 64

// Job is one piece of work that a lane may submit to its job ring.
type Job interface {
	// Run executes the job with the caller's scratch buffers. It runs once, on any goroutine, before JobRing.Collect returns
	// the job. Everything before JobRing.Submit happens before Run. It must not block.
	Run(s *session.Scratch)
}

// Config configures a pool.
type Config struct {
	// Workers is the number of workers, at most MaxWorkers. Each has its own thread and file descriptor.
	Workers int
	// BusyPoll lets workers hold their Go processors while there is traffic; see package busypoll. GOMAXPROCS must count them.
	BusyPoll bool
}

// Pool is a pool of workers. A nil pool has no workers, and its job rings are never available.
type Pool struct {
	workers  []*worker
	yield    func() // offers the core to other threads
	stopping atomic.Bool
	running  sync.WaitGroup
}

// Start starts cfg.Workers workers. It returns nil for zero workers, and an error when file descriptors have run out.
func Start(cfg Config) (*Pool, error) {
	if cfg.Workers < 1 {
		return nil, nil
	}
	c := &Pool{yield: yieldCore}
	for i := range min(cfg.Workers, MaxWorkers) {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("creating the eventfd of worker %d: %w", i, err)
		}
		w := &worker{
			pool: c, name: "rw-worker" + strconv.Itoa(i), event: fd, wakeValue: [8]byte{1}, poller: busypoll.Poller{Busy: cfg.BusyPoll}, yields: maxYields,
		}
		c.workers = append(c.workers, w)
		c.running.Go(w.run)
	}
	return c, nil
}

// Workers returns the number of workers.
func (p *Pool) Workers() int {
	if p == nil {
		return 0
	}
	return len(p.workers)
}

// Close stops the workers and waits for them. Call it once, when no lane uses its job ring any more.
func (p *Pool) Close() {
	if p == nil {
		return
	}
	p.stopping.Store(true)
	for _, w := range p.workers {
		w.wake()
	}
	p.running.Wait()
	for _, w := range p.workers {
		_ = unix.Close(w.event)
	}
}

// assignAttempts bounds how many workers assignWorker tries.
const assignAttempts = 4

// assignWorker assigns a free worker to r, if one of the next assignAttempts is free. The search starts at the worker that
// was assigned last, and moves on past busy ones.
func (p *Pool) assignWorker(r *JobRing) {
	for range min(assignAttempts, len(p.workers)) {
		if p.workers[r.nextWorker].assign(r) {
			return
		}
		r.nextWorker = (r.nextWorker + 1) % len(p.workers)
	}
}
