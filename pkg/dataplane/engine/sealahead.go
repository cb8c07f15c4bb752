// SPDX-License-Identifier: Apache-2.0

package engine

// A lane with a backlog reads ahead: its batches are jobs in its job ring, which workers seal, and are sent in the order in
// which they were read. This code does not run while the job ring is unavailable or the TUN queue is empty.

// readMore reads trains that have arrived since the last read, after it has sent the current batch or submitted it as a job.
// It returns false if there are none, or if workers may not help.
func (t *transmitter) readMore() bool {
	switch {
	case !t.jobs.Available(t.now) || t.bytes() < minSealBytes:
		return false
	case t.jobs.Backlogged():
		return t.submitAndRead()
	}
	t.flush()
	n := t.reader.tryRead(t.txBatch)
	t.jobs.ReportBacklog(min(n, 1))
	t.addTrains(n)
	return n > 0
}

// submitAndRead submits the current batch as a job and starts another. It returns false, and does nothing, if no trains have
// arrived.
func (t *transmitter) submitAndRead() bool {
	next := t.spareBatch()
	n := t.reader.tryRead(next)
	t.jobs.ReportBacklog(min(n, 1))
	if n == 0 {
		t.spares = append(t.spares, next)
		return false
	}
	b := t.txBatch
	t.txBatch = next
	t.submit(b)
	t.addTrains(n)
	t.sendSealed()
	return true
}

// spareBatch returns an unused batch. There are at most two more batches than the job ring holds.
func (t *transmitter) spareBatch() *txBatch {
	last := len(t.spares) - 1
	if last < 0 {
		return newTxBatch(txSlots)
	}
	b := t.spares[last] // the last used, perhaps still in the cache
	t.spares = t.spares[:last]
	return b
}

// submit submits a batch as a job. It collects the oldest first if the ring is full.
func (t *transmitter) submit(b *txBatch) {
	t.prepare(b)
	if t.jobs.Full() {
		t.collect()
	}
	t.jobs.Submit(b)
}

// sendSealed sends the oldest batches as far as they are sealed.
func (t *transmitter) sendSealed() {
	for t.jobs.OldestDone() {
		t.collect()
	}
}

// collect waits for the oldest batch and sends it.
func (t *transmitter) collect() {
	b := t.jobs.Collect(&t.scratch).(*txBatch)
	t.send(b)
	if b != t.txBatch {
		t.spares = append(t.spares, b)
	}
}

// flush seals and sends all batches in order.
func (t *transmitter) flush() {
	t.flushes++
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
