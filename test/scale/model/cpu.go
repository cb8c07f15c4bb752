// SPDX-License-Identifier: Apache-2.0

package model

// Use is a kind of work on which a core spends time.
type Use int

// What cores spend time on.
const (
	UseApp   Use = iota // applications
	UseTx               // transmit lanes
	UseRx               // receive lanes
	UseIRQ              // softirqs
	UseHelp             // sealing and opening for lanes of other cores
	UseWait             // waiting for a cache line
	useCount            // number of uses
)

// String returns the name for plots.
func (u Use) String() string {
	return [...]string{"application", "transmit lanes", "receive lanes", "softirq", "help", "waiting for a line"}[u]
}

// AllUses returns all uses, in order.
func AllUses() []Use {
	all := make([]Use, useCount)
	for i := range all {
		all[i] = Use(i)
	}
	return all
}

// step is a part of a job: it takes ns nanoseconds of a core, or holds a cache line for that time.
type step struct {
	ns   float64
	line *cacheLine
}

// job is work that a thread or softirq does without being preempted by another thread. After its steps, then is called.
type job struct {
	use   Use
	steps []step
	then  func()
}

// machine has cores, and threads that wait for one. An idle core runs the thread that has waited longest, for one job: the
// scheduler is ideal. Softirqs are bound to a core and precede threads there, also between two steps of a job.
type machine struct {
	queue *eventQueue
	cores []*core
	ready fifo[*thread]
	since int64 // start of the measurement
}

func newMachine(cal *eventQueue, n int) *machine {
	m := &machine{queue: cal}
	for i := range n {
		m.cores = append(m.cores, &core{machine: m, index: i})
	}
	return m
}

// core is one processor.
type core struct {
	machine          *machine
	index            int
	busy             bool
	irq              fifo[job]
	softirqsDeferred bool            // the softirqs used up their burst and more are queued
	used             [useCount]int64 // ns since the start of the measurement
}

// idle returns an idle core, preferably hint, or nil.
func (m *machine) idle(hint *core) *core {
	if hint != nil && !hint.busy {
		return hint
	}
	for _, c := range m.cores {
		if !c.busy {
			return c
		}
	}
	return nil
}

// interrupt queues a softirq on a core.
func (c *core) interrupt(j job) {
	c.irq.push(j)
	if !c.busy {
		c.dispatch()
	}
}

// dispatch starts the next softirq or thread on an idle core.
func (c *core) dispatch() {
	switch {
	case c.irq.len() > 0 && (!c.softirqsDeferred || c.machine.ready.len() == 0):
		c.busy = true
		c.softirqs(c.dispatchAgain)
	case c.machine.ready.len() > 0:
		c.busy, c.softirqsDeferred = true, false
		t := c.machine.ready.pop()
		t.core = c
		start := c.machine.queue.now
		c.do(t.job, func() {
			t.ran += c.machine.elapsed(start)
			t.enqueue()
			c.dispatchAgain()
		})
	}
}

// dispatchAgain goes on after a job. A job without steps ends while another begins, and may leave a thread that this core does not take.
func (c *core) dispatchAgain() {
	c.busy = false
	c.dispatch()
	if other := c.machine.idle(nil); other != nil && c.machine.ready.len() > 0 {
		other.dispatch()
	}
}

// softirqBurst is the time, in ns, that softirqs run before a thread may run. Linux defers further softirqs to the thread ksoftirqd
// after 300 packets (netdev_budget).
const softirqBurst = int64(200_000)

// softirqs runs the queued softirqs, for one burst at most, and then calls then.
func (c *core) softirqs(then func()) {
	began := c.machine.queue.now
	var another func()
	another = func() {
		c.softirqsDeferred = c.irq.len() > 0 && c.machine.queue.now-began >= softirqBurst
		if c.irq.len() == 0 || c.softirqsDeferred {
			then()
			return
		}
		j := c.irq.pop()
		c.steps(j, 0, false, func() {
			j.then()
			another()
		})
	}
	another()
}

func (c *core) do(j job, then func()) {
	c.steps(j, 0, true, func() {
		j.then()
		then()
	})
}

// steps runs a job's steps from index at. Softirqs may run between them.
func (c *core) steps(j job, at int, preemptible bool, then func()) {
	if at == len(j.steps) {
		then()
		return
	}
	next := func() {
		if preemptible && c.irq.len() > 0 && !c.softirqsDeferred {
			c.softirqs(func() { c.steps(j, at+1, preemptible, then) })
			return
		}
		c.steps(j, at+1, preemptible, then)
	}
	s := j.steps[at]
	if s.line != nil {
		s.line.acquire(c, s.ns, next)
		return
	}
	c.spend(j.use, int64(s.ns+0.5), next)
}

// spend passes ns of time on the core.
func (c *core) spend(use Use, ns int64, then func()) {
	if ns <= 0 {
		then()
		return
	}
	start := c.machine.queue.now
	c.machine.queue.after(ns, func() {
		c.charge(use, start)
		then()
	})
}

// charge accounts the time from start until now.
func (c *core) charge(use Use, start int64) { c.used[use] += c.machine.elapsed(start) }

// elapsed returns the time from start until now, without time before the start of the measurement.
func (m *machine) elapsed(start int64) int64 { return max(m.queue.now-max(start, m.since), 0) }

// thread runs the jobs that source returns, one at a time. Other threads may run between them.
type thread struct {
	machine *machine
	core    *core // where it ran last
	queued  bool  // ready or running
	source  func() (job, bool)
	job     job
	ran     int64 // ns since the start of the measurement, including softirqs that interrupted it
}

func newThread(m *machine, source func() (job, bool)) *thread {
	return &thread{machine: m, source: source}
}

// wake makes the thread ready if its source has a job.
func (t *thread) wake() {
	if t.queued {
		return
	}
	if !t.enqueue() {
		return
	}
	if c := t.machine.idle(t.core); c != nil {
		c.dispatch()
	}
}

// enqueue puts the thread at the end of the ready queue if its source has a job.
func (t *thread) enqueue() bool {
	t.job, t.queued = t.source()
	if t.queued {
		t.machine.ready.push(t)
	}
	return t.queued
}
