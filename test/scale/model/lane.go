// SPDX-License-Identifier: Apache-2.0

package model

// lane is one direction of a lane: a thread that takes trains through its stages. Helpers may do the middle stage. Trains leave in
// the order in which they arrived.
type lane struct {
	end    *endpoint
	index  int
	use    Use
	thread *thread
	in     fifo[*element]
	bytes  int // waiting in the queue

	// front, middle and back return the work on a train before, in and after the stage that helpers may do. done is called when a
	// train leaves.
	front, middle, back func(p *element) []step
	done                func(l *lane, p *element)

	pending fifo[*handedOut] // trains after the front stage, in order

	helpFront bool           // a helper may run the front stage
	fronting  bool           // one does
	fronted   fifo[*element] // trains whose front stage a helper ran, in order
}

// handedOut is a train that has passed the front stage, and whose middle stage may run on another core.
type handedOut struct {
	lane     *lane
	train    *element
	claimed  bool // by the thread that runs the middle stage
	ready    bool
	byHelper bool // the middle stage ran on another core
	awake    bool // the helper is, so that nobody has to wake it
	front    bool // the front stage is handed out, not the middle one
}

func newLane(e *endpoint, index int, use Use) *lane {
	l := &lane{end: e, index: index, use: use}
	l.thread = newThread(e.machine, l.next)
	return l
}

// enqueue puts a train at the end of the lane's queue.
func (l *lane) enqueue(p *element, at location) {
	l.end.sim.move(p, at)
	l.in.push(p)
	l.bytes += p.train.Bytes
	l.thread.wake()
}

// next returns the next job of the lane's thread. The job finishes the first train, starts
// another, or runs a middle stage that no helper has claimed.
func (l *lane) next() (job, bool) {
	if l.pending.len() > 0 && l.pending.first().ready {
		return l.finish(), true
	}
	if l.waiting() > 0 && l.pending.len() < maxHandedOut {
		return l.begin(), true
	}
	for _, s := range l.pending.items[l.pending.head:] {
		if !s.claimed {
			s.claimed = true
			return job{l.use, l.middle(s.train), func() { s.ready = true }}, true
		}
	}
	return job{}, false
}

func (l *lane) finish() job {
	s := l.pending.first()
	l.handFront(false)
	steps := l.back(s.train)
	if s.byHelper && s.train.writer == nil {
		steps = append(steps, step{ns: l.end.sim.cfg.HandBack})
	}
	return job{l.use, steps, func() {
		l.pending.pop()
		l.done(l, s.train)
	}}
}

// waiting returns the number of trains that the lane's thread may begin: none that a helper has yet to receive overtakes another.
func (l *lane) waiting() int {
	if l.fronting {
		return l.fronted.len()
	}
	return l.fronted.len() + l.in.len()
}

// take removes the next train from the queue.
func (l *lane) take() *element {
	p := l.in.pop()
	l.bytes -= p.train.Bytes
	return p
}

// first removes the next train, and returns the rest of its front stage.
func (l *lane) first() (*element, []step) {
	if l.fronted.len() > 0 {
		return l.fronted.pop(), nil
	}
	p := l.take()
	return p, l.front(p)
}

// handFront lets an idle core run the front stage of the next train. awake means that its thread is awake.
func (l *lane) handFront(awake bool) {
	if !l.helpFront || l.fronting || l.in.len() == 0 || l.fronted.len() >= maxHandedOut || l.end.machine.idle(nil) == nil {
		return
	}
	l.fronting = true
	l.end.submit(&handedOut{lane: l, train: l.take(), front: true, awake: awake})
}

// begin starts a train with the front stage. If more trains wait, and a helper is idle or may get idle soon, it hands out the middle stage;
// otherwise it runs all stages.
func (l *lane) begin() job {
	p, steps := l.first()
	backlogged := l.waiting() > 0 || l.fronting || l.pending.len() > 0
	if l.end.helpers != nil && backlogged && (l.helpFront || l.end.machine.idle(nil) != nil) {
		return job{l.use, steps, func() {
			s := &handedOut{lane: l, train: p}
			l.pending.push(s)
			l.end.submit(s)
			l.handFront(false)
		}}
	}
	steps = append(steps, l.middle(p)...)
	if l.pending.len() > 0 {
		return job{l.use, steps, func() { l.pending.push(&handedOut{lane: l, train: p, claimed: true, ready: true}) }}
	}
	return job{l.use, append(steps, l.back(p)...), func() { l.done(l, p) }}
}

// helpers run middle stages that lanes have handed out.
type helpers struct {
	slots   fifo[*handedOut]
	threads []*thread
}

func newHelpers(e *endpoint) *helpers {
	h := &helpers{}
	for range e.host.Workers {
		h.threads = append(h.threads, newThread(e.machine, func() (job, bool) { return h.next(e) }))
	}
	return h
}

func (h *helpers) next(e *endpoint) (job, bool) {
	for h.slots.len() > 0 {
		s := h.slots.pop()
		if s.claimed {
			continue
		}
		s.claimed, s.byHelper = true, true
		if s.front {
			return s.receive(), true
		}
		return job{UseHelp, append(s.lane.middle(s.train), step{ns: e.sim.cfg.HandOff}), func() {
			s.ready = true
			s.lane.thread.wake()
		}}, true
	}
	return job{}, false
}

// receive returns the front stage of a train as a job of a helper, which goes on with the next train.
func (s *handedOut) receive() job {
	l := s.lane
	steps := l.front(s.train)
	if !s.awake {
		steps = append(steps, step{ns: l.end.sim.cfg.Wake})
	}
	return job{UseHelp, steps, func() {
		l.fronted.push(s.train)
		l.fronting = false
		l.handFront(true)
		l.thread.wake()
	}}
}

// submit hands out a train's middle stage to the helpers.
func (e *endpoint) submit(s *handedOut) {
	e.helpers.slots.push(s)
	for _, t := range e.helpers.threads {
		if !t.queued {
			t.wake()
			return
		}
	}
}
