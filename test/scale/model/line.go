// SPDX-License-Identifier: Apache-2.0

package model

// cacheLine is a cache line that several cores write. They acquire it in order of arrival, and cores that wait are busy.
type cacheLine struct {
	queue       *eventQueue
	uncontended float64 // ns if the same core acquired it last
	last        *core
	locked      bool
	waiting     fifo[waiter]
	held        int64 // ns since the start of the measurement
}

type waiter struct {
	core  *core
	since int64
	ns    float64
	then  func()
}

// acquire calls then after c has held the line for ns nanoseconds, or less if c was the last to hold it.
func (l *cacheLine) acquire(c *core, ns float64, then func()) {
	l.waiting.push(waiter{c, l.queue.now, ns, then})
	if !l.locked {
		l.grant()
	}
}

func (l *cacheLine) grant() {
	t := l.waiting.pop()
	l.locked = true
	ns := t.ns
	if t.core == l.last {
		ns = min(ns, l.uncontended)
	}
	l.last = t.core
	hold := int64(ns + 0.5)
	start := l.queue.now
	l.queue.after(hold, func() {
		l.held += t.core.machine.elapsed(start)
		l.locked = false
		t.core.charge(UseWait, t.since)
		if l.waiting.len() > 0 {
			l.grant()
		}
		t.then()
	})
}
