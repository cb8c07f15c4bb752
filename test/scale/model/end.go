// SPDX-License-Identifier: Apache-2.0

package model

// end is one end of the tunnel.
type end struct {
	sim     *sim
	machine *machine
	tx, rx  []*lane
	queues  []*nicQueue
	helpers *helpers // nil: lanes have no help
	out     *path    // to the other end
	nonce   *line
	window  *line
	kernel  *line
}

// nicQueue is one receive queue of a NIC: its interrupt has a core of its own, as far as there are as many.
type nicQueue struct {
	core    *core
	packets int // waiting
	busy    int64
}

func newEnd(s *sim, m *machine) *end {
	e := &end{sim: s, machine: m}
	if s.cfg.Help {
		e.helpers = newHelpers(e)
	}
	e.nonce = &line{cal: &s.calendar, alone: s.cfg.Lines.Alone}
	e.window = &line{cal: &s.calendar, alone: s.cfg.Lines.Alone}
	e.kernel = &line{cal: &s.calendar}
	for i := range s.cfg.Lanes {
		e.tx = append(e.tx, e.txLane(i))
		e.rx = append(e.rx, e.rxLane(i))
	}
	for i := range s.cfg.Queues {
		e.queues = append(e.queues, &nicQueue{core: m.cores[i%len(m.cores)]})
	}
	return e
}

func (e *end) work(p *parcel, list ...Stage) []step {
	return []step{{ns: e.sim.cfg.Costs.Of(p.train, list...)}}
}

func (e *end) txLane(i int) *lane {
	l := newLane(e, i, UseTx)
	front, middle := []Stage{TUNRead, Split}, []Stage{Seal}
	if e.sim.cfg.HelpMore {
		front, middle = front[:1], []Stage{Split, Seal}
	}
	l.front = func(p *parcel) []step {
		return append(e.work(p, front...), step{ns: e.sim.cfg.Lines.Nonce, line: e.nonce})
	}
	l.middle = func(p *parcel) []step { return e.work(p, middle...) }
	l.back = func(p *parcel) []step {
		return append(e.work(p, Send), step{ns: e.sim.cfg.Lines.Send, line: e.kernel})
	}
	l.done = func(l *lane, p *parcel) { e.transmit(l, p) }
	return l
}

func (e *end) rxLane(i int) *lane {
	l := newLane(e, i, UseRx)
	lines := &e.sim.cfg.Lines
	l.front = func(p *parcel) []step { return e.work(p, Receive) }
	middle, back := []Stage{Open}, []Stage{Merge, TUNWrite}
	if e.sim.cfg.HelpMore {
		middle, back = []Stage{Open, Merge}, back[1:]
	}
	l.middle = func(p *parcel) []step { return e.work(p, middle...) }
	l.back = func(p *parcel) []step {
		turn := step{ns: lines.WindowElement + lines.WindowPacket*float64(p.train.Packets), line: e.window}
		return append([]step{turn}, e.work(p, back...)...)
	}
	l.done = func(_ *lane, p *parcel) { e.sim.arrived(p) }
	return l
}

// enter is what an application, or the inner TCP, gives to the TUN.
func (e *end) enter(p *parcel) {
	lane := int(p.flow.hash&0xffff) % len(e.tx) // as TUN does with what the steering program returns
	if e.sim.cfg.SteerEven {
		lane = p.flow.number % len(e.tx)
	}
	p.entered = e.sim.now
	l := e.tx[lane]
	if l.in.len() >= tunQueue && !e.sim.cfg.Closed {
		e.sim.drop(p, DropTUN)
		return
	}
	l.take(p, atTUN)
}

// transmit puts a train on the wire.
func (e *end) transmit(l *lane, p *parcel) {
	w := e.out
	p.port = w.port(l.index, p.flow.hash, e.sim.now, p.train.Bytes)
	delay := e.sim.cfg.Delay
	if rate := e.sim.cfg.Link; rate > 0 {
		start := max(w.linkFree, e.sim.now)
		if float64(start-e.sim.now)*rate/8e9 > linkBacklg {
			e.sim.drop(p, DropLink)
			return
		}
		w.linkFree = start + int64(float64(p.train.Bytes)*8e9/rate)
		delay += w.linkFree - e.sim.now
	}
	e.sim.move(p, atWire)
	e.sim.in(delay, func() { w.to.arrive(w, p) })
}

// arrive is a train at the receiver's NIC.
func (e *end) arrive(w *path, p *parcel) {
	if e.sim.cfg.Cable {
		e.socket(w, p)
		return
	}
	q := e.queues[w.queueOf[p.port]]
	if q.packets > 0 && q.packets+p.train.Packets > nicRing && !e.sim.cfg.Closed {
		e.sim.drop(p, DropNIC)
		return
	}
	q.packets += p.train.Packets
	e.sim.move(p, atNIC)
	steps := e.work(p, Softirq)
	q.core.interrupt(job{UseIRQ, steps, func() {
		q.packets -= p.train.Packets
		q.busy += int64(steps[0].ns)
		e.socket(w, p)
	}})
}

// socket queues a train before its lane.
func (e *end) socket(w *path, p *parcel) {
	l := e.rx[w.laneOf[p.port]]
	if l.bytes > 0 && l.bytes+p.train.Bytes > e.sim.cfg.socketBuffer() && !e.sim.cfg.Closed {
		e.sim.drop(p, DropSocket)
		return
	}
	l.take(p, atSocket)
}
