// SPDX-License-Identifier: Apache-2.0

package crew

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/ropewalk/ropewalk/pkg/noise"
	"github.com/ropewalk/ropewalk/pkg/session"
)

// piece is work that takes a while and counts how often it was done.
type piece struct {
	number int
	turns  int // of the scheduler
	done   int // no atomic: the race detector is to see who touches it
	by     *session.Scratch
}

// Do implements Work.
func (p *piece) Do(s *session.Scratch) {
	for range p.turns {
		runtime.Gosched()
	}
	p.done++
	p.by = s
}

// manyWorkers are more than there are cores.
func manyWorkers() int { return 2*runtime.NumCPU() + 1 }

func start(tb testing.TB, workers int) *Crew {
	tb.Helper()
	c, err := Start(Config{Workers: workers})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// eventually waits until cond holds.
func eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("waited in vain until %s", what)
		}
	}
}

// TestWorkIsCollectedInOrderAndDoneOnce has more lanes and workers than cores, and work of random length.
func TestWorkIsCollectedInOrderAndDoneOnce(t *testing.T) {
	c := start(t, manyWorkers())
	var lanes sync.WaitGroup
	for lane := range 3 {
		lanes.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(lane)))
			if err := carry(c.NewDesk(8), 3000, random); err != nil {
				t.Errorf("lane %d: %v", lane, err)
			}
		})
	}
	lanes.Wait()
}

// carry passes n pieces over d, as a lane does that collects when it likes.
func carry(d *Desk, n int, random *rand.Rand) error {
	scratch := new(session.Scratch)
	collected := 0
	collect := func() error {
		p := d.Collect(scratch).(*piece)
		if p.number != collected || p.done != 1 {
			return fmt.Errorf("piece %d came in place of %d, done %d times", p.number, collected, p.done)
		}
		collected++
		return nil
	}
	for i := range n {
		for d.Full() || d.Waiting() > 0 && random.IntN(3) == 0 {
			if err := collect(); err != nil {
				return err
			}
		}
		d.Offer(&piece{number: i, turns: random.IntN(20)})
	}
	for d.Waiting() > 0 {
		if err := collect(); err != nil {
			return err
		}
	}
	s := d.Stats()
	if collected != n || s.Offered != uint64(n) || s.Done+s.TakenBack != uint64(n) {
		return fmt.Errorf("%d pieces of %d were collected: %+v", collected, n, s)
	}
	return nil
}

func TestWorkersDoWhatTheLaneLeaves(t *testing.T) {
	c := start(t, 1)
	d, scratch := c.NewDesk(8), new(session.Scratch)
	p := &piece{}
	d.Offer(p)
	eventually(t, "a worker has done it", d.Done)
	if d.Collect(scratch) != Work(p) || p.by == scratch || p.by == nil {
		t.Error("the lane did it, or nobody")
	}
	if s := d.Stats(); s != (Stats{Offered: 1, Done: 1}) {
		t.Errorf("%+v", s)
	}
}

func TestLaneTakesBackWhatNobodyHasBegun(t *testing.T) {
	c := absent(3)
	d, scratch := c.NewDesk(8), new(session.Scratch)
	var pieces []*piece
	for !d.Full() {
		pieces = append(pieces, &piece{})
		d.Offer(pieces[len(pieces)-1])
	}
	if d.Done() {
		t.Error("something is done that nobody has begun")
	}
	for _, p := range pieces {
		if d.Collect(scratch) != Work(p) || p.by != scratch || p.done != 1 {
			t.Errorf("%+v", p)
		}
	}
	if s := d.Stats(); s.TakenBack != uint64(len(pieces)) || s.Done != 0 {
		t.Errorf("%+v", s)
	}
}

// absent returns a crew whose workers never come.
func absent(workers int) *Crew {
	c := &Crew{}
	for range workers {
		c.workers = append(c.workers, &worker{crew: c, event: -1})
	}
	return c
}

func TestDeskHoldsWhatItsWorkersCanDoWith(t *testing.T) {
	for _, tt := range []struct{ workers, depth, want int }{{1, 8, 3}, {2, 8, 5}, {20, 8, 8}, {20, 4, 4}} {
		d := absent(tt.workers).NewDesk(tt.depth)
		for !d.Full() {
			d.Offer(&piece{})
		}
		if d.Waiting() != tt.want {
			t.Errorf("%d workers, depth %d: %d", tt.workers, tt.depth, d.Waiting())
		}
	}
}

func TestSecondWorkerIsCalledWhenTheFirstHasEnough(t *testing.T) {
	c := absent(2)
	d := c.NewDesk(8)
	for i, want := range []int32{1, 2, 2} {
		d.Offer(&piece{})
		if got := d.present.Load(); got != want {
			t.Errorf("after offer %d: %d workers called, want %d", i, got, want)
		}
	}
	if other := c.NewDesk(8); !other.Full() {
		other.Offer(&piece{})
		if n := other.present.Load(); n != 0 {
			t.Errorf("%d workers serve two desks", n)
		}
	}
}

// TestFreeWorkerIsFoundInTheEnd has as many lanes as workers, each of which must get one although the first are always busy.
func TestFreeWorkerIsFoundInTheEnd(t *testing.T) {
	const workers = 4 * asks
	c := absent(workers)
	for lane := range workers {
		d := c.NewDesk(8)
		for offers := 0; d.present.Load() == 0; offers++ {
			if offers == workers/asks {
				t.Fatalf("lane %d has offered %d times, and nobody came", lane, offers)
			}
			d.Offer(&piece{})
		}
	}
}

// sealing is work with a buffer.
type sealing struct {
	keys *session.Keypair
	msg  []byte
}

// Do implements Work.
func (w *sealing) Do(s *session.Scratch) { w.keys.SealEach(s, [][]byte{w.msg}, 0) }

// TestNothingIsKeptOfALaneThatIsGone has a worker do its work, and looks whether it can be collected as garbage.
func TestNothingIsKeptOfALaneThatIsGone(t *testing.T) {
	c := start(t, 1)
	d, scratch := c.NewDesk(8), new(session.Scratch)
	offer := func() weak.Pointer[byte] {
		keys, err := session.NewKeypair(&noise.Keys{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		msg := make([]byte, 1<<16-1)
		d.Offer(&sealing{keys, msg})
		return weak.Make(&msg[0])
	}
	buffer := offer()
	eventually(t, "a worker has done it", d.Done)
	if d.Collect(scratch); d.Stats().Done != 1 {
		t.Fatalf("%+v", d.Stats())
	}
	eventually(t, "its buffer is free", func() bool {
		runtime.GC()
		return buffer.Value() == nil
	})
	runtime.KeepAlive(d)
}

func TestWorkersGoToSleepAndComeAgain(t *testing.T) {
	c := start(t, 2)
	d, scratch := c.NewDesk(8), new(session.Scratch)
	for range 5 {
		for range 4 {
			d.Offer(&piece{turns: 3})
		}
		eventually(t, "workers have done all", func() bool { return d.begun.Load() == d.offered.Load() && d.Done() })
		for d.Waiting() > 0 {
			d.Collect(scratch)
		}
		eventually(t, "all sleep", func() bool {
			for _, w := range c.workers {
				if !w.asleep.Load() {
					return false
				}
			}
			return d.present.Load() == 0
		})
	}
}

func TestWithoutWorkersNoDeskOpens(t *testing.T) {
	c, err := Start(Config{})
	if err != nil || c.Workers() != 0 {
		t.Fatal(c, err)
	}
	if c.NewDesk(8).Open(1) {
		t.Error("a desk without workers is open")
	}
	c.Close()
}

func TestCloseLeavesNeitherGoroutinesNorDescriptors(t *testing.T) {
	goroutines, files := runtime.NumGoroutine(), descriptors(t)
	for range 3 {
		c, err := Start(Config{Workers: 4, Linger: true})
		if err != nil {
			t.Fatal(err)
		}
		d := c.NewDesk(8)
		for range 3 {
			d.Offer(&piece{turns: 10}) // what is on a desk stays there
		}
		c.Close()
		for d.Waiting() > 0 { // its lane is none the worse
			if d.Collect(new(session.Scratch)).(*piece).done != 1 {
				t.Error("a piece was not done once")
			}
		}
	}
	eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	if n := descriptors(t); n != files {
		t.Errorf("%d descriptors, %d before", n, files)
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

func TestOfferingAllocatesNothing(t *testing.T) {
	d, scratch := start(t, 2).NewDesk(8), new(session.Scratch)
	pieces := make([]piece, 4)
	if n := testing.AllocsPerRun(1000, func() {
		for i := range pieces {
			d.Offer(&pieces[i])
		}
		for d.Waiting() > 0 {
			d.Collect(scratch)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestStatsMayBeReadMeanwhile is for the race detector.
func TestStatsMayBeReadMeanwhile(t *testing.T) {
	d := start(t, 2).NewDesk(4)
	var ended atomic.Bool
	var reader sync.WaitGroup
	reader.Go(func() {
		for !ended.Load() {
			if s := d.Stats(); s.Done > 500 {
				t.Errorf("%+v", s)
				return
			}
		}
	})
	if err := carry(d, 500, rand.New(rand.NewPCG(1, 2))); err != nil {
		t.Error(err)
	}
	ended.Store(true)
	reader.Wait()
}

// TestEachPieceIsBegunOnce has more who claim than cores, who never rest.
func TestEachPieceIsBegunOnce(t *testing.T) {
	d := absent(manyWorkers()).NewDesk(8)
	var ended atomic.Bool
	var claimers sync.WaitGroup
	for range manyWorkers() {
		claimers.Go(func() {
			for s := new(session.Scratch); !ended.Load(); runtime.Gosched() {
				for j := d.claim(); j != nil; j = d.claim() {
					j.do(s)
				}
			}
		})
	}
	if err := carry(d, 20000, rand.New(rand.NewPCG(3, 4))); err != nil {
		t.Error(err)
	}
	ended.Store(true)
	claimers.Wait()
}
