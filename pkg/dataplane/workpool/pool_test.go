// SPDX-License-Identifier: Apache-2.0

package workpool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"weak"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/test/expect"
)

// piece is a job that takes a while and counts how often it ran.
type piece struct {
	number int
	turns  int // how often Run pauses
	pause  func()
	done   int // not atomic, so that the race detector sees concurrent use
	by     *session.Scratch
}

// Run implements Job.
func (p *piece) Run(s *session.Scratch) {
	for range p.turns {
		p.pause()
	}
	p.done++
	p.by = s
}

func start(tb testing.TB, workers int) *Pool {
	tb.Helper()
	c, err := Start(Config{Workers: workers})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// manyWorkers is more than the number of cores.
func manyWorkers() int { return 2*runtime.NumCPU() + 1 }

// TestJobsAreCollectedInOrderAndRunOnce has three lanes, more workers, and jobs of random length, one thread at a time in random orders of
// steps.
func TestJobsAreCollectedInOrderAndRunOnce(t *testing.T) {
	const lanes, jobs = 3, 40
	byWorkers := uint64(0)
	for seed := range uint64(60) {
		s, pool := newSchedule(seed), absent(2*lanes-1)
		pool.yield = s.pause
		done, errs := 0, error(nil)
		s.add(func() {
			for done < lanes {
				s.pause()
			}
		})
		var rings []*JobRing
		for range lanes {
			ring := pool.NewJobRing(8)
			rings = append(rings, ring)
			s.add(func() {
				errs = errors.Join(errs, carry(ring, jobs, s.random, s.pause))
				for done++; ; {
					s.pause()
				}
			})
		}
		s.addWorkers(pool)
		if ended := s.run(1_000_000); !ended || errs != nil {
			t.Fatalf("seed %d: all lanes ended %v, error %v", seed, ended, errs)
		}
		for _, r := range rings {
			byWorkers += r.Stats().Done
		}
	}
	if byWorkers == 0 {
		t.Error("no worker ran a job")
	}
}

// carry submits n jobs to r and collects them at random moments, as a lane does. Each job pauses some times.
func carry(r *JobRing, n int, random *rand.Rand, pause func()) error {
	scratch := new(session.Scratch)
	collected := 0
	collect := func() error {
		p := r.Collect(scratch).(*piece)
		if p.number != collected || p.done != 1 {
			return fmt.Errorf("got job %d, want %d; it ran %d times", p.number, collected, p.done)
		}
		collected++
		return nil
	}
	for i := range n {
		for r.Full() || r.Pending() > 0 && random.IntN(3) == 0 {
			if err := collect(); err != nil {
				return err
			}
		}
		r.Submit(&piece{number: i, turns: random.IntN(20), pause: pause})
	}
	for r.Pending() > 0 {
		if err := collect(); err != nil {
			return err
		}
	}
	if st := r.Stats(); collected != n || st.Submitted != uint64(n) || st.Done+st.ByLane != uint64(n) {
		return fmt.Errorf("collected %d jobs of %d: %+v", collected, n, st)
	}
	return nil
}

func TestWorkersRunJobsOfBusyLane(t *testing.T) {
	c := start(t, 1)
	d, scratch := c.NewJobRing(8), new(session.Scratch)
	p := &piece{}
	d.Submit(p)
	expect.Eventually(t, "a worker has done it", d.OldestDone)
	if d.Collect(scratch) != Job(p) || p.by == scratch || p.by == nil {
		t.Error("no worker ran the job")
	}
	if s := d.Stats(); s != (Stats{Submitted: 1, Done: 1}) {
		t.Errorf("got %+v, want %+v", s, (Stats{Submitted: 1, Done: 1}))
	}
}

func TestLaneRunsUnclaimedJobsItself(t *testing.T) {
	c := absent(3)
	d, scratch := c.NewJobRing(8), new(session.Scratch)
	var pieces []*piece
	for !d.Full() {
		pieces = append(pieces, &piece{})
		d.Submit(pieces[len(pieces)-1])
	}
	if d.OldestDone() {
		t.Error("an unclaimed job is done")
	}
	for _, p := range pieces {
		if d.Collect(scratch) != Job(p) || p.by != scratch || p.done != 1 {
			t.Errorf("got %+v", p)
		}
	}
	if s := d.Stats(); s.ByLane != uint64(len(pieces)) || s.Done != 0 {
		t.Errorf("got %+v, want ByLane %v, Done 0", s, uint64(len(pieces)))
	}
}

// absent returns a pool whose workers never run.
func absent(workers int) *Pool {
	c := &Pool{yield: runtime.Gosched}
	for range workers {
		c.workers = append(c.workers, &worker{pool: c, event: -1})
	}
	return c
}

func TestJobRingDepthFollowsWorkerCount(t *testing.T) {
	for _, tt := range []struct{ workers, depth, want int }{{1, 8, 3}, {2, 8, 5}, {20, 8, 8}, {20, 4, 4}} {
		d := absent(tt.workers).NewJobRing(tt.depth)
		for !d.Full() {
			d.Submit(&piece{})
		}
		if d.Pending() != tt.want {
			t.Errorf("%d workers, depth %d: got %d jobs in the ring, want %d", tt.workers, tt.depth, d.Pending(), tt.want)
		}
	}
}

func TestSecondWorkerIsAssignedWhenFirstIsBusy(t *testing.T) {
	c := absent(2)
	d := c.NewJobRing(8)
	for i, want := range []int32{1, 2, 2} {
		d.Submit(&piece{})
		if got := d.attached.Load(); got != want {
			t.Errorf("after job %d: got %d workers assigned, want %d", i, got, want)
		}
	}
	if other := c.NewJobRing(8); !other.Full() {
		other.Submit(&piece{})
		if n := other.attached.Load(); n != 0 {
			t.Errorf("%d workers serve two rings", n)
		}
	}
}

// TestFreeWorkerIsFoundEventually has as many lanes as workers. Each lane must get a worker although the first workers stay busy.
func TestFreeWorkerIsFoundEventually(t *testing.T) {
	const workers = 4 * assignAttempts
	c := absent(workers)
	for lane := range workers {
		d := c.NewJobRing(8)
		for offers := 0; d.attached.Load() == 0; offers++ {
			if offers == workers/assignAttempts {
				t.Fatalf("lane %d submitted %d jobs and got no worker", lane, offers)
			}
			d.Submit(&piece{})
		}
	}
}

// sealing is a job with a buffer.
type sealing struct {
	keys *session.Keypair
	msg  []byte
}

// Run implements Job.
func (w *sealing) Run(s *session.Scratch) { w.keys.SealEach(s, [][]byte{w.msg}, 0) }

// TestPoolKeepsNoReferenceToRemovedLane lets a worker run a job and checks that the garbage collector frees it.
func TestPoolKeepsNoReferenceToRemovedLane(t *testing.T) {
	c := start(t, 1)
	d, scratch := c.NewJobRing(8), new(session.Scratch)
	offer := func() weak.Pointer[byte] {
		keys, err := session.NewKeypair(&noise.Keys{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		msg := make([]byte, 1<<16-1)
		d.Submit(&sealing{keys, msg})
		return weak.Make(&msg[0])
	}
	buffer := offer()
	expect.Eventually(t, "a worker has done it", d.OldestDone)
	if d.Collect(scratch); d.Stats().Done != 1 {
		t.Fatalf("got %+v", d.Stats())
	}
	expect.Eventually(t, "its buffer is free", func() bool {
		runtime.GC()
		return buffer.Value() == nil
	})
	runtime.KeepAlive(d)
}

// errand is a job that refers to a buffer.
type errand struct{ buffer []byte }

// Run implements Job.
func (e *errand) Run(*session.Scratch) { e.buffer[0]++ }

func TestRingKeepsNoReferenceToEndedOffer(t *testing.T) {
	for _, workers := range []int{0, 1} {
		c := start(t, 1)
		r := c.NewJobRing(8)
		if workers == 0 {
			r = absent(1).NewJobRing(8)
		}
		offer := func() weak.Pointer[byte] {
			e := &errand{make([]byte, 1<<16)}
			r.Offer(e)
			return weak.Make(&e.buffer[0])
		}
		buffer := offer()
		if workers > 0 {
			expect.Eventually(t, "a worker has run it", func() bool { return Outcome(r.offer.state.Load()) == Done })
		}
		if got := r.Retract(); (got == Done) != (workers > 0) {
			t.Errorf("%d workers: got outcome %d", workers, got)
		}
		expect.Eventually(t, "its buffer is free", func() bool {
			runtime.GC()
			return buffer.Value() == nil
		})
		runtime.KeepAlive(r)
	}
}

// TestPollingWorkerFindsOffer has a worker that has begun to poll: Offer does not wake it.
func TestPollingWorkerFindsOffer(t *testing.T) {
	c := absent(1)
	r, w := c.NewJobRing(8), c.workers[0]
	w.yields = minYields
	if w.waitForJob(r) {
		t.Error("the worker finds a job where there is none")
	}
	r.Offer(&errand{make([]byte, 1)})
	if !w.waitForJob(r) || !r.runNext(&w.scratch) || r.Retract() != Done {
		t.Error("the worker does not run the offered job")
	}
}

func TestWorkersSleepAndWakeUp(t *testing.T) {
	c := start(t, 2)
	d, scratch := c.NewJobRing(8), new(session.Scratch)
	for range 5 {
		for range 4 {
			d.Submit(&piece{turns: 3, pause: runtime.Gosched})
		}
		expect.Eventually(t, "workers have done all", func() bool { return d.claimed.Load() == d.submitted.Load() && d.OldestDone() })
		for d.Pending() > 0 {
			d.Collect(scratch)
		}
		expect.Eventually(t, "all sleep", func() bool {
			for _, w := range c.workers {
				if !w.asleep.Load() {
					return false
				}
			}
			return d.attached.Load() == 0
		})
	}
}

func TestJobRingWithoutWorkersIsUnavailable(t *testing.T) {
	c, err := Start(Config{})
	if err != nil || c.Workers() != 0 {
		t.Fatal(c, err)
	}
	if c.NewJobRing(8).Available(1) {
		t.Error("a ring without workers is available")
	}
	c.Close()
}

func TestCloseLeaksNoGoroutineOrDescriptor(t *testing.T) {
	goroutines, files := runtime.NumGoroutine(), descriptors(t)
	for range 3 {
		c, err := Start(Config{Workers: 4, BusyPoll: true})
		if err != nil {
			t.Fatal(err)
		}
		d := c.NewJobRing(8)
		for range 3 {
			d.Submit(&piece{turns: 10, pause: runtime.Gosched}) // the job stays in the ring
		}
		c.Close()
		for d.Pending() > 0 { // the lane runs what the pool did not
			if d.Collect(new(session.Scratch)).(*piece).done != 1 {
				t.Error("a job did not run exactly once")
			}
		}
	}
	expect.Eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	if n := descriptors(t); n != files {
		t.Errorf("got %d descriptors open, want %d", n, files)
	}
}

func descriptors(tb testing.TB) int {
	tb.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Skip("needs /proc: ", err)
	}
	return len(entries)
}

func TestSubmitAllocatesNothing(t *testing.T) {
	d, scratch := start(t, 2).NewJobRing(8), new(session.Scratch)
	pieces := make([]piece, 4)
	if n := testing.AllocsPerRun(1000, func() {
		for i := range pieces {
			d.Submit(&pieces[i])
		}
		for d.Pending() > 0 {
			d.Collect(scratch)
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// TestStatsMayBeReadConcurrently reads statistics while jobs run, for the race detector.
func TestStatsMayBeReadConcurrently(t *testing.T) {
	d := start(t, 2).NewJobRing(4)
	var ended atomic.Bool
	var reader sync.WaitGroup
	reader.Go(func() {
		for !ended.Load() {
			if s := d.Stats(); s.Done > 500 {
				t.Errorf("got %+v, want Done at most 500", s)
				return
			}
		}
	})
	if err := carry(d, 500, rand.New(rand.NewPCG(1, 2)), runtime.Gosched); err != nil {
		t.Error(err)
	}
	ended.Store(true)
	reader.Wait()
}

// TestEachJobIsClaimedOnce uses more claiming goroutines than cores, and none of them pauses.
func TestEachJobIsClaimedOnce(t *testing.T) {
	d := absent(manyWorkers()).NewJobRing(8)
	var ended atomic.Bool
	var claimers sync.WaitGroup
	for range manyWorkers() {
		claimers.Go(func() {
			for s := new(session.Scratch); !ended.Load(); runtime.Gosched() {
				for j := d.claim(); j != nil; j = d.claim() {
					j.run(s)
				}
			}
		})
	}
	if err := carry(d, 20000, rand.New(rand.NewPCG(3, 4)), runtime.Gosched); err != nil {
		t.Error(err)
	}
	ended.Store(true)
	claimers.Wait()
}
