// SPDX-License-Identifier: Apache-2.0

package model

// writer is the part of a lane that writes trains of other lanes to its TUN queue. A flow always has the same writer, so its trains leave
// in the order in which they were handed over.
type writer struct {
	end    *endpoint
	thread *thread
	in     fifo[handedOver]
	busy   bool // it has not written all
}

// handedOver is a merged train that waits for its writer.
type handedOver struct {
	train *element
	woke  bool // the writer was asleep
}

func newWriter(e *endpoint) *writer {
	w := &writer{end: e}
	w.thread = newThread(e.machine, w.next)
	return w
}

// chooseWriter chooses who writes p: the writer of its flow while the lane has more to do, and until that writer has caught up.
func (l *lane) chooseWriter(p *element) {
	if l.end.writers == nil {
		return
	}
	w := l.end.writers[l.end.laneOfFlow(p.flow)]
	if w.busy || l.waiting()+l.pending.len() > 1 {
		p.writer, w.busy = w, true
	}
}

func (w *writer) enqueue(p *element) {
	w.end.sim.move(p, atWriter)
	w.in.push(handedOver{p, !w.thread.queued})
	w.thread.wake()
}

// next returns the job to write the first train. Its payload is in the cache of another core.
func (w *writer) next() (job, bool) {
	if w.in.len() == 0 {
		return job{}, false
	}
	h, cfg := w.in.pop(), &w.end.sim.cfg
	steps := append(w.end.stageStep(h.train, TUNWrite), step{ns: cfg.HandBack})
	if h.woke {
		steps = append(steps, step{ns: cfg.Wake})
	}
	return job{UseRx, steps, func() {
		w.busy = w.in.len() > 0
		w.end.sim.fromLane(h.train)
	}}, true
}
