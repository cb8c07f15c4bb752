// SPDX-License-Identifier: Apache-2.0

package engine

// A lane that has more to send than it has sealed reads ahead: its units stand in line on its desk, where workers find them,
// and leave in the order in which they were read. Nothing here runs while the desk is closed or the TUN queue empty.

// more has what has come behind the unit that is being filled follow it, and returns false if there is nothing or nobody to
// help. A unit that others may seal goes on the desk.
func (t *transmitter) more() bool {
	switch {
	case !t.desk.Open(t.now) || t.bytes() < worthwhile:
		return false
	case t.desk.Pressed():
		return t.advance()
	}
	t.flush()
	n := t.lane.queue.TryRead(t.bufs, t.sizes)
	t.desk.Press(min(n, 1))
	t.load(n)
	return n > 0
}

// advance puts the unit that is being filled on the desk, and fills another. It returns false, and does nothing, if nothing
// has come behind it.
func (t *transmitter) advance() bool {
	next := t.spare()
	n := t.lane.queue.TryRead(next.bufs, next.sizes)
	t.desk.Press(min(n, 1))
	if n == 0 {
		t.spares = append(t.spares, next)
		return false
	}
	u := t.unit
	t.unit = next
	t.offer(u)
	t.load(n)
	t.leaveDone()
	return true
}

// spare returns a unit that nobody uses. There are never more than the desk holds and two.
func (t *transmitter) spare() *unit {
	last := len(t.spares) - 1
	if last < 0 {
		return newUnit(txSlots)
	}
	u := t.spares[last] // used last, and perhaps still in the cache
	t.spares = t.spares[:last]
	return u
}

// offer puts a unit on the desk, and collects the oldest if there is no room.
func (t *transmitter) offer(u *unit) {
	t.prepare(u)
	if t.desk.Full() {
		t.collect()
	}
	t.desk.Offer(u)
}

// leaveDone sends those units at the front of the line that are sealed.
func (t *transmitter) leaveDone() {
	for t.desk.Done() {
		t.collect()
	}
}

// collect sends the unit at the front of the line.
func (t *transmitter) collect() {
	u := t.desk.Collect(&t.scratch).(*unit)
	t.send(u)
	if u != t.unit {
		t.spares = append(t.spares, u)
	}
}

// flush seals and sends all, in order, and forgets it.
func (t *transmitter) flush() {
	switch {
	case t.desk.Waiting() == 0:
		if !t.empty() {
			t.prepare(t.unit)
			t.Do(&t.scratch)
			t.send(t.unit)
		}
		return
	case !t.empty():
		t.offer(t.unit)
	}
	for t.desk.Waiting() > 0 {
		t.collect()
	}
}
