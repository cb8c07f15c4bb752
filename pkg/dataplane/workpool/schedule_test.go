// SPDX-License-Identifier: Apache-2.0

package workpool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// schedule runs tasks one at a time. Whenever one pauses, it lets a random one go on: the same seed gives the same order of steps.
type schedule struct {
	random *rand.Rand
	tasks  []chan bool // to each task: go on, false for the last time
	paused chan bool   // from the task that ran: it has not ended
	at     int         // that task
}

// errEnded ends a task that pauses after the end of the schedule.
var errEnded = errors.New("the schedule has ended")

func newSchedule(seed uint64) *schedule {
	return &schedule{random: rand.New(rand.NewPCG(seed, 7)), paused: make(chan bool)}
}

// pause lets other tasks run.
func (s *schedule) pause() {
	own := s.tasks[s.at]
	s.paused <- true
	if !<-own {
		panic(errEnded)
	}
}

// add adds a task.
func (s *schedule) add(task func()) {
	own := make(chan bool)
	s.tasks = append(s.tasks, own)
	go func() {
		defer func() {
			if r := recover(); r != nil && r != errEnded { //nolint:errorlint // the value of panic
				panic(r)
			}
			s.paused <- false
		}()
		if <-own {
			task()
		}
	}()
}

// addWorkers adds the workers of a pool whose threads do not run.
func (s *schedule) addWorkers(p *Pool) {
	for _, w := range p.workers {
		w.yields = minYields
		s.add(func() {
			for {
				w.serveAssigned()
				s.pause()
			}
		})
	}
}

// run runs the tasks until the first has ended, at most so many steps. Then it ends the others.
func (s *schedule) run(steps int) (ended bool) {
	for ; steps > 0 && !ended; steps-- {
		s.at = s.random.IntN(len(s.tasks))
		s.tasks[s.at] <- true
		ended = !<-s.paused
	}
	for i, own := range s.tasks {
		if !ended || i > 0 {
			own <- false
			<-s.paused
		}
	}
	return ended
}

// scheduled is a lane that receives numbers in order, with workers that receive and run jobs for it.
type scheduled struct {
	*schedule
	ring      *JobRing
	arrived   int // numbers at the socket
	taken     int // received of them
	in        []int
	offered   bool
	reading   bool
	queue     []int // admitted
	handled   int
	byWorkers int // receive calls
	err       error
}

// number is a job, the handling of a number before its turn.
type number struct {
	lane *scheduled
	n    int
	runs int
}

// Run implements Job.
func (j *number) Run(*session.Scratch) {
	j.lane.pause()
	j.runs++
	j.lane.pause()
}

// receiving is the job to receive.
type receiving struct{ lane *scheduled }

// Run implements Job.
func (j receiving) Run(*session.Scratch) {
	j.lane.byWorkers++
	j.lane.receive()
}

// receive takes what has arrived, up to three numbers.
func (l *scheduled) receive() {
	if l.reading {
		l.err = errors.New("two threads receive at once")
	}
	l.reading, l.in = true, l.in[:0]
	l.pause()
	for len(l.in) < 3 && l.taken < l.arrived {
		l.in = append(l.in, l.taken)
		l.taken++
		l.pause()
	}
	l.reading = false
}

// handle is the lane: it ends when it has handled all numbers.
func (l *scheduled) handle(count int) {
	for s := new(session.Scratch); l.handled < count && l.err == nil; l.pause() {
		l.admit(s)
		for len(l.queue) > 0 && !l.ring.Full() {
			l.ring.Submit(&number{lane: l, n: l.queue[0]})
			l.queue = l.queue[1:]
			l.pause()
		}
		if !l.offered && l.ring.Pending() > 0 {
			l.offered = true
			l.ring.Offer(receiving{l})
			l.pause()
		}
		if l.ring.Pending() > 0 {
			l.take(l.ring.Collect(s).(*number))
		}
	}
}

// take handles the result of a job.
func (l *scheduled) take(j *number) {
	if j.n != l.handled || j.runs != 1 {
		l.err = fmt.Errorf("got number %d, which ran %d times, want %d", j.n, j.runs, l.handled)
	}
	l.handled++
}

// admit moves received numbers to the queue, as receiver.next does.
func (l *scheduled) admit(s *session.Scratch) {
	outcome := NotOffered
	if l.offered {
		if outcome = l.ring.Retract(); outcome == Running {
			if l.ring.Pending() > 0 {
				return
			}
			outcome = l.ring.AwaitOffer(s)
		}
		l.offered = false
	}
	if outcome != Done {
		l.receive()
	}
	l.queue = append(l.queue, l.in...)
}

// TestSeededSchedulesKeepOrder runs the code of rings and workers, one thread at a time, in random orders of steps.
func TestSeededSchedulesKeepOrder(t *testing.T) {
	const count = 12
	byWorkers, jobs := 0, uint64(0)
	for seed := range uint64(300) {
		s := newSchedule(seed)
		pool := absent(1 + int(seed%3))
		pool.yield = s.pause
		l := &scheduled{schedule: s, ring: pool.NewJobRing(4)}
		s.add(func() { l.handle(count) })
		s.add(func() {
			for ; l.arrived < count; l.arrived++ {
				s.pause()
			}
			for {
				s.pause()
			}
		})
		s.addWorkers(pool)
		if !s.run(100_000) {
			t.Fatalf("seed %d: the lane has handled %d of %d numbers, and does not go on", seed, l.handled, count)
		}
		if l.err != nil {
			t.Fatalf("seed %d: %v", seed, l.err)
		}
		byWorkers, jobs = byWorkers+l.byWorkers, jobs+l.ring.Stats().Done
	}
	if byWorkers == 0 || jobs == 0 {
		t.Errorf("workers received %d times and ran %d jobs, want more than 0", byWorkers, jobs)
	}
}
