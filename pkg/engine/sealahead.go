// SPDX-License-Identifier: Apache-2.0

package engine

// A lane that has more to send than it has sealed reads ahead: its units stand in line on its desk, where workers find them,
// and leave in the order in which they were read. Nothing here runs while the desk is closed or the TUN queue empty.

// readMore has what has come behind the unit that is being filled follow it, and returns false if there is nothing or nobody to
// help. A unit that others may seal goes on the desk.
func (t *transmitter) readMore() bool {
	switch {
	case !t.jobs.Available(t.now) || t.bytes() < minSealBytes:
		return false
	case t.jobs.Backlogged():
		return t.submitAndRead()
	}
	t.flush()
	n := t.lane.queue.TryRead(t.bufs, t.sizes)
	t.jobs.ReportBacklog(min(n, 1))
	t.addTrains(n)
	return n > 0
}

// submitAndRead puts the unit that is being filled on the desk, and fills another. It returns false, and does nothing, if nothing
// has come behind it.
func (t *transmitter) submitAndRead() bool {
	next := t.spareBatch()
	n := t.lane.queue.TryRead(next.bufs, next.sizes)
	t.jobs.ReportBacklog(min(n, 1))
	if n == 0 {
		t.spares = append(t.spares, next)
		return false
	}
	u := t.txBatch
	t.txBatch = next
	t.submit(u)
	t.addTrains(n)
	t.sendSealed()
	return true
}

// spareBatch returns a unit that nobody uses. There are never more than the desk holds and two.
func (t *transmitter) spareBatch() *txBatch {
	last := len(t.spares) - 1
	if last < 0 {
		return newTxBatch(txSlots)
	}
	u := t.spares[last] // arenaUsed last, and perhaps still in the cache
	t.spares = t.spares[:last]
	return u
}

// submit puts a unit on the desk, and collects the oldest if there is no room.
func (t *transmitter) submit(u *txBatch) {
	t.prepare(u)
	if t.jobs.Full() {
		t.collect()
	}
	t.jobs.Submit(u)
}

// sendSealed sends those units at the front of the line that are sealed.
func (t *transmitter) sendSealed() {
	for t.jobs.OldestDone() {
		t.collect()
	}
}

// collect sends the unit at the front of the line.
func (t *transmitter) collect() {
	u := t.jobs.Collect(&t.scratch).(*txBatch)
	t.send(u)
	if u != t.txBatch {
		t.spares = append(t.spares, u)
	}
}

// flush seals and sends all, in order, and forgets it.
func (t *transmitter) flush() {
	switch {
	case t.jobs.Pending() == 0:
		if !t.empty() {
			t.prepare(t.txBatch)
			t.Run(&t.scratch)
			t.send(t.txBatch)
		}
		return
	case !t.empty():
		t.submit(t.txBatch)
	}
	for t.jobs.Pending() > 0 {
		t.collect()
	}
}
