// SPDX-License-Identifier: Apache-2.0

package model

// line is a cache line that several cores write. They have it in turn, first come, first served, and who waits burns
// its core's time.
type line struct {
	cal     *calendar
	alone   float64 // of a turn that follows one of the same core
	last    *core
	taken   bool
	waiting fifo[turn]
	held    int64 // ns since the figures began
}

type turn struct {
	core  *core
	since int64
	ns    float64
	then  func()
}

// turn has c hold the line for so many ns, or for less if c was the last to have it, and goes on then.
func (l *line) turn(c *core, ns float64, then func()) {
	l.waiting.push(turn{c, l.cal.now, ns, then})
	if !l.taken {
		l.serve()
	}
}

func (l *line) serve() {
	t := l.waiting.pop()
	l.taken = true
	ns := t.ns
	if t.core == l.last {
		ns = min(ns, l.alone)
	}
	l.last = t.core
	hold := int64(ns + 0.5)
	start := l.cal.now
	l.cal.in(hold, func() {
		l.held += t.core.machine.elapsed(start)
		l.taken = false
		t.core.charge(UseWait, t.since)
		if l.waiting.len() > 0 {
			l.serve()
		}
		t.then()
	})
}
