// SPDX-License-Identifier: Apache-2.0

package model

// endpoint is one end of the tunnel.
type endpoint struct {
	sim     *sim
	machine *machine
	host    Host
	tx, rx  []*lane
	queues  []*nicQueue
	helpers *helpers  // nil: lanes do all work themselves
	writers []*writer // by lane; nil: each receive lane writes what it has opened
	out     *path     // to the other end
	nonce   *cacheLine
	window  *cacheLine
	kernel  *cacheLine
}

// nicQueue is one receive queue of a NIC. Queues are assigned to cores in turn.
type nicQueue struct {
	core    *core
	packets int // waiting
	busy    int64
}

func newEnd(s *sim, m *machine, h Host) *endpoint {
	e := &endpoint{sim: s, machine: m, host: h}
	if s.cfg.Help && h.Cores > 1 && h.Workers > 0 { // with one, rings back off
		e.helpers = newHelpers(e)
	}
	e.nonce = &cacheLine{queue: &s.eventQueue, uncontended: s.cfg.Lines.Alone}
	e.window = &cacheLine{queue: &s.eventQueue, uncontended: s.cfg.Lines.Alone}
	e.kernel = &cacheLine{queue: &s.eventQueue}
	for i := range h.Lanes {
		e.tx = append(e.tx, e.txLane(i))
		e.rx = append(e.rx, e.rxLane(i))
		if s.cfg.HelpWrite {
			e.writers = append(e.writers, newWriter(e))
		}
	}
	for i := range h.Queues {
		e.queues = append(e.queues, &nicQueue{core: m.cores[i%len(m.cores)]})
	}
	return e
}

func (e *endpoint) stageStep(p *element, list ...Stage) []step {
	return []step{{ns: e.sim.cfg.Costs.Of(p.train, list...)}}
}

func (e *endpoint) txLane(i int) *lane {
	l := newLane(e, i, UseTx)
	front, middle := []Stage{TUNRead, Split}, []Stage{Seal}
	if e.sim.cfg.HelpSplitMerge || e.sim.cfg.HelpReceive {
		front, middle = front[:1], []Stage{Split, Seal}
	}
	l.front = func(p *element) []step {
		return append(e.stageStep(p, front...), step{ns: e.sim.cfg.Lines.Nonce, line: e.nonce})
	}
	l.middle = func(p *element) []step { return e.stageStep(p, middle...) }
	l.back = func(p *element) []step {
		return append(e.stageStep(p, Send), step{ns: e.sim.cfg.Lines.Send, line: e.kernel})
	}
	l.done = func(l *lane, p *element) { e.transmit(l, p) }
	return l
}

func (e *endpoint) rxLane(i int) *lane {
	l := newLane(e, i, UseRx)
	l.helpFront = e.sim.cfg.HelpReceive
	lines := &e.sim.cfg.Lines
	l.front = func(p *element) []step { return e.stageStep(p, Receive) }
	l.middle = func(p *element) []step {
		if e.sim.cfg.HelpSplitMerge {
			return e.stageStep(p, Open, Merge)
		}
		return append(e.stageStep(p, Open), step{ns: e.sim.cfg.Costs.sums(p.train)})
	}
	l.back = func(p *element) []step {
		turn := []step{{ns: lines.WindowElement + lines.WindowPacket*float64(p.train.Packets), line: e.window}}
		check := step{ns: e.sim.cfg.Costs.check(p.train)}
		switch l.chooseWriter(p); {
		case p.writer != nil:
			return append(turn, check)
		case e.sim.cfg.HelpSplitMerge:
			return append(turn, e.stageStep(p, TUNWrite)...)
		}
		return append(append(turn, check), e.stageStep(p, TUNWrite)...)
	}
	l.done = func(_ *lane, p *element) {
		if p.writer != nil {
			p.writer.enqueue(p)
			return
		}
		e.sim.fromLane(p)
	}
	return l
}

// enqueueTUN puts a train from an application, or an acknowledgement, into the queue of the TUN.
func (e *endpoint) enqueueTUN(p *element) {
	p.entered = e.sim.now
	l := e.tx[e.laneOfFlow(p.flow)]
	if l.in.len() >= tunQueue && !e.sim.cfg.ClosedLoop {
		e.sim.drop(p, DropTUN)
		return
	}
	l.enqueue(p, atTUN)
}

// laneOfFlow returns the lane whose TUN queue has an inner flow.
func (e *endpoint) laneOfFlow(f *flow) int {
	if e.sim.cfg.SteerEven {
		return f.number % len(e.tx)
	}
	return int(f.hash&0xffff) % len(e.tx) // TUN uses the steering program's result in the same way
}

// transmit puts a train on the wire.
func (e *endpoint) transmit(l *lane, p *element) {
	w := e.out
	p.port = w.port(l.index, p.flow.hash, e.sim.now, p.train.Bytes)
	delay := e.sim.cfg.Delay
	if rate := e.sim.cfg.Link; rate > 0 {
		start := max(w.linkFree, e.sim.now)
		if float64(start-e.sim.now)*rate/8e9 > linkBacklog {
			e.sim.drop(p, DropLink)
			return
		}
		w.linkFree = start + int64(float64(p.train.Bytes)*8e9/rate)
		delay += w.linkFree - e.sim.now
	}
	e.sim.move(p, atWire)
	e.sim.after(delay, func() { w.to.receiveNIC(w, p) })
}

// receiveNIC is called when a train arrives at the receiver's NIC.
func (e *endpoint) receiveNIC(w *path, p *element) {
	if e.sim.cfg.Cable {
		e.enqueueSocket(w, p)
		return
	}
	q := e.queues[w.queueOf[p.port]]
	if q.packets > 0 && q.packets+p.train.Packets > nicRing && !e.sim.cfg.ClosedLoop {
		e.sim.drop(p, DropNIC)
		return
	}
	q.packets += p.train.Packets
	e.sim.move(p, atNIC)
	steps := e.stageStep(p, Softirq)
	q.core.interrupt(job{UseIRQ, steps, func() {
		q.packets -= p.train.Packets
		q.busy += int64(steps[0].ns)
		e.enqueueSocket(w, p)
	}})
}

// enqueueSocket queues a train at the socket of its lane.
func (e *endpoint) enqueueSocket(w *path, p *element) {
	l := e.rx[w.laneOf[p.port]]
	if l.bytes > 0 && l.bytes+p.train.Bytes > e.host.socketBuffer() && !e.sim.cfg.ClosedLoop {
		e.sim.drop(p, DropSocket)
		return
	}
	l.enqueue(p, atSocket)
}
