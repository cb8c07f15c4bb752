// SPDX-License-Identifier: Apache-2.0

package model

// Use is what the time of cores went into.
type Use int

// The uses of a core's time.
const (
	UseApp   Use = iota // applications
	UseTx               // transmit lanes
	UseRx               // receive lanes
	UseIRQ              // softirqs
	UseHelp             // sealing and opening for other lanes
	UseWait             // waiting for a cache line
	useCount            // how many there are
)

// String names it as plots do.
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

// step is a part of a job: so many ns of a core, or a turn at a line that takes so many ns of it.
type step struct {
	ns   float64
	line *line
}

// job is what a thread or softirq does without being put aside by another thread: its steps, and what comes of them.
type job struct {
	use   Use
	steps []step
	then  func()
}

// machine is cores and the threads that are ready for one. Any core takes the thread that has waited longest, one job
// at a time, as a scheduler does that spreads threads well. Softirqs are bound to their core, and go before threads
// there, also in the midst of a job, between two steps of it.
type machine struct {
	cal   *calendar
	cores []*core
	ready fifo[*thread]
	since int64 // when the figures begin
}

func newMachine(cal *calendar, n int) *machine {
	m := &machine{cal: cal}
	for i := range n {
		m.cores = append(m.cores, &core{machine: m, index: i})
	}
	return m
}

// core is one processor.
type core struct {
	machine *machine
	index   int
	busy    bool
	irq     fifo[job]
	sated   bool            // softirqs have had their burst, and want more
	used    [useCount]int64 // ns since the figures began
}

// idle returns a core that has nothing to do: hint if it can be that one.
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

// interrupt gives a core a softirq.
func (c *core) interrupt(j job) {
	c.irq.push(j)
	if !c.busy {
		c.dispatch()
	}
}

// dispatch takes what is next for an idle core.
func (c *core) dispatch() {
	switch {
	case c.irq.len() > 0 && (!c.sated || c.machine.ready.len() == 0):
		c.busy = true
		c.softirqs(c.dispatchAgain)
	case c.machine.ready.len() > 0:
		c.busy, c.sated = true, false
		t := c.machine.ready.pop()
		t.core = c
		start := c.machine.cal.now
		c.do(t.job, func() {
			t.ran += c.machine.elapsed(start)
			t.lineUp()
			c.dispatchAgain()
		})
	}
}

func (c *core) dispatchAgain() {
	c.busy = false
	c.dispatch()
}

// softirqBurst is how long softirqs go on, in ns, before a thread has its turn, as in Linux, which gives the rest to a
// thread of their own (ksoftirqd): netdev_budget, 300 packets.
const softirqBurst = int64(200_000)

// softirqs does those that there are, for one burst, then goes on.
func (c *core) softirqs(then func()) {
	began := c.machine.cal.now
	var another func()
	another = func() {
		c.sated = c.irq.len() > 0 && c.machine.cal.now-began >= softirqBurst
		if c.irq.len() == 0 || c.sated {
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

// steps does what is left of a job's steps. Softirqs may come between them.
func (c *core) steps(j job, at int, preemptible bool, then func()) {
	if at == len(j.steps) {
		then()
		return
	}
	next := func() {
		if preemptible && c.irq.len() > 0 && !c.sated {
			c.softirqs(func() { c.steps(j, at+1, preemptible, then) })
			return
		}
		c.steps(j, at+1, preemptible, then)
	}
	s := j.steps[at]
	if s.line != nil {
		s.line.turn(c, s.ns, next)
		return
	}
	c.spend(j.use, int64(s.ns+0.5), next)
}

// spend passes time on the core.
func (c *core) spend(use Use, ns int64, then func()) {
	if ns <= 0 {
		then()
		return
	}
	start := c.machine.cal.now
	c.machine.cal.in(ns, func() {
		c.charge(use, start)
		then()
	})
}

// charge books the time from start to now.
func (c *core) charge(use Use, start int64) { c.used[use] += c.machine.elapsed(start) }

// elapsed is the time from start to now, as far as the figures cover it.
func (m *machine) elapsed(start int64) int64 { return max(m.cal.now-max(start, m.since), 0) }

// thread does the jobs that source gives it, one after the other, with a turn for others between them.
type thread struct {
	machine *machine
	core    *core // where it ran last
	queued  bool  // ready or running
	source  func() (job, bool)
	job     job
	ran     int64 // ns since the figures began, with what interrupted it
}

func newThread(m *machine, source func() (job, bool)) *thread {
	return &thread{machine: m, source: source}
}

// poke tells the thread that its source may have something.
func (t *thread) poke() {
	if t.queued {
		return
	}
	if !t.lineUp() {
		return
	}
	if c := t.machine.idle(t.core); c != nil {
		c.dispatch()
	}
}

// lineUp puts the thread behind those that are ready, if it has anything to do.
func (t *thread) lineUp() bool {
	t.job, t.queued = t.source()
	if t.queued {
		t.machine.ready.push(t)
	}
	return t.queued
}
