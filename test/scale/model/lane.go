// SPDX-License-Identifier: Apache-2.0

package model

// lane is one direction of one lane: a thread that takes a train through the stages before, the one that may be done
// elsewhere, and those after it. Trains leave in the order in which they came.
type lane struct {
	end    *end
	index  int
	use    Use
	thread *thread
	in     fifo[*parcel]
	bytes  int // waiting in it

	// front, middle and back are the work on a train; done is what follows.
	front, middle, back func(p *parcel) []step
	done                func(l *lane, p *parcel)

	ahead fifo[*slot] // trains whose middle is done, or being done elsewhere
}

// slot is a train of a lane that has been through the front.
type slot struct {
	lane  *lane
	p     *parcel
	taken bool // by the thread that runs the middle stage
	ready bool
	away  bool // on another core
}

func newLane(e *end, index int, use Use) *lane {
	l := &lane{end: e, index: index, use: use}
	l.thread = newThread(e.machine, l.next)
	return l
}

// take puts a train at the end of the lane's queue.
func (l *lane) take(p *parcel, at place) {
	l.end.sim.move(p, at)
	l.in.push(p)
	l.bytes += p.train.Bytes
	l.thread.poke()
}

// next is the source of the lane's thread: first what can leave, then what has come, then what nobody else has begun.
func (l *lane) next() (job, bool) {
	if l.ahead.len() > 0 && l.ahead.first().ready {
		return l.leave(), true
	}
	if l.in.len() > 0 && l.ahead.len() < helpAhead {
		return l.begin(), true
	}
	for _, s := range l.ahead.items[l.ahead.head:] {
		if !s.taken {
			s.taken = true
			return job{l.use, l.middle(s.p), func() { s.ready = true }}, true
		}
	}
	return job{}, false
}

func (l *lane) leave() job {
	s := l.ahead.first()
	steps := l.back(s.p)
	if s.away {
		steps = append(steps, step{ns: l.end.sim.cfg.HandBack})
	}
	return job{l.use, steps, func() {
		l.ahead.pop()
		l.done(l, s.p)
	}}
}

// begin takes a train through the front; and further, unless there is help.
func (l *lane) begin() job {
	p := l.in.pop()
	l.bytes -= p.train.Bytes
	steps := l.front(p)
	backlogged := l.in.len() > 0 || l.ahead.len() > 0
	if l.end.helpers != nil && backlogged && l.end.machine.idle(nil) != nil {
		return job{l.use, steps, func() {
			s := &slot{lane: l, p: p}
			l.ahead.push(s)
			l.end.help(s)
		}}
	}
	steps = append(steps, l.middle(p)...)
	if l.ahead.len() > 0 {
		return job{l.use, steps, func() { l.ahead.push(&slot{lane: l, p: p, taken: true, ready: true}) }}
	}
	return job{l.use, append(steps, l.back(p)...), func() { l.done(l, p) }}
}

// helpers do what lanes have handed out.
type helpers struct {
	slots   fifo[*slot]
	threads []*thread
}

func newHelpers(e *end) *helpers {
	h := &helpers{}
	for range e.sim.cfg.Cores {
		h.threads = append(h.threads, newThread(e.machine, func() (job, bool) { return h.next(e) }))
	}
	return h
}

func (h *helpers) next(e *end) (job, bool) {
	for h.slots.len() > 0 {
		s := h.slots.pop()
		if s.taken {
			continue
		}
		s.taken, s.away = true, true
		return job{UseHelp, append(s.lane.middle(s.p), step{ns: e.sim.cfg.HandOff}), func() {
			s.ready = true
			s.lane.thread.poke()
		}}, true
	}
	return job{}, false
}

// help hands a train's middle out.
func (e *end) help(s *slot) {
	e.helpers.slots.push(s)
	for _, t := range e.helpers.threads {
		if !t.queued {
			t.poke()
			return
		}
	}
}
