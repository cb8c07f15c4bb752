// SPDX-License-Identifier: Apache-2.0

package engine

// A lane with a backlog reads ahead: it submits its batches as jobs to its job ring, workers seal them, and the lane sends them in the
// order in which it read them. Without a backlog, or while the job ring is unavailable, each batch is sealed and sent before the next read.

// readMore reads trains that have arrived since the last read. With a backlog it then submits the current batch as a job. Without one it
// seals and sends the current batch before it reads. It returns false if no trains have arrived, or at once if the current batch is too
// small for a job or the job ring is unavailable.
func (t *transmitter) readMore() bool {
	switch {
	case !t.jobs.Available(t.now) || t.bytes() < minSealBytes:
		return false
	case t.jobs.Backlogged():
		return t.readAndSubmit()
	}
	t.flush()
	n := t.reader.tryRead(t.txBatch)
	t.jobs.ReportBacklog(min(n, 1)) // counted in batches: one read fills at most one
	t.addTrains(n)
	return n > 0
}

// readAndSubmit reads trains into another batch, which becomes the current one, and submits the batch before as a job. It returns false,
// and the current batch stays, if no trains have arrived.
func (t *transmitter) readAndSubmit() bool {
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

// spareBatch returns an unused batch. All batches together are at most as many as the job ring holds, the current one and the next.
func (t *transmitter) spareBatch() *txBatch {
	last := len(t.spares) - 1
	if last < 0 {
		t.lane.engine.memory.note()
		return newTxBatch(txSlots)
	}
	b := t.spares[last] // the most recently used, perhaps still in the cache
	t.spares = t.spares[:last]
	return b
}

// submit submits a batch as a job. If the ring is full, it first waits for the oldest job and sends its batch.
func (t *transmitter) submit(b *txBatch) {
	t.prepare(b)
	if t.jobs.Full() {
		t.collect()
	}
	t.jobs.Submit(b)
}

// sendSealed sends the oldest batches, up to the first that is not sealed yet.
func (t *transmitter) sendSealed() {
	for t.jobs.OldestDone() {
		t.collect()
	}
}

// collect waits for the oldest batch and sends it.
func (t *transmitter) collect() {
	b := t.jobs.Collect(&t.scratch).(*txBatch)
	t.send(b)
	if b != t.txBatch { // flush submits the current batch, which stays the current one
		t.spares = append(t.spares, b)
	}
}

// flush seals and sends all batches in order.
func (t *transmitter) flush() {
	t.flushes++
	if t.jobs.Pending() == 0 {
		if !t.empty() {
			t.prepare(t.txBatch)
			t.Run(&t.scratch) // seals the current batch, which is embedded
			t.send(t.txBatch)
		}
		return
	}
	if !t.empty() {
		t.submit(t.txBatch)
	}
	for t.jobs.Pending() > 0 {
		t.collect()
	}
}
