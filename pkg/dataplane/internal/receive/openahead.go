// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// maxOpenMessages bounds the messages of a train that is opened ahead: openJob.checksumOK has a bit for each, and no underlay
// receives longer ones.
const maxOpenMessages = underlay.MaxCoalesced

// lookahead holds the elements that have left the receive queue and are handled next, in order.
// Workers decrypt the trains among them before the lane handles them. The lane does everything
// that depends on order: the replay window, merging, writing. Workers also sum the payload, so
// that only the kernel's copy reads it again. Fetching it from another core's cache costs the
// lane as much as opening it.
type lookahead struct {
	jobs       [lane.MaxJobs]openJob // a ring
	head, tail uint
	enabled    bool // workers may help
}

// openJob is the decryption of one received element.
type openJob struct {
	element
	submitted  bool // to the job ring
	session    *lane.Session
	keys       *session.Keypair
	now        int64
	opened     []session.Message
	checksumOK uint64 // bit i: the checksums of the packet in opened[i] are correct
}

// Run decrypts the train in place and verifies the checksums of its packets; it implements workpool.Job.
func (a *openJob) Run(s *session.Scratch) {
	n := a.keys.DecryptTrain(s, a.now, a.train(), a.SegSize, a.opened[:maxOpenMessages])
	a.opened, a.checksumOK = a.opened[:n], 0
	for i := range a.opened {
		plain := a.opened[i].Padded
		if n, ok := packet.Length(plain); ok && offload.ChecksumsOK(plain[:n]) {
			a.checksumOK |= 1 << i
		}
	}
}

// empty reports whether all elements that were taken from the queue have been handled.
func (l *lookahead) empty() bool { return l.head == l.tail }

// next removes the oldest element and returns it; nil if there is none. It stays valid until the ring is filled again.
func (l *lookahead) next() *openJob {
	if l.empty() {
		return nil
	}
	a := &l.jobs[l.head%lane.MaxJobs]
	l.head++
	return a
}

// contains reports whether an element of a flow is in the ring.
func (l *lookahead) contains(flow flowKey) bool {
	for i := l.head; i != l.tail; i++ {
		if l.jobs[i%lane.MaxJobs].flow == flow {
			return true
		}
	}
	return false
}

// reportBacklog reports the number of bulk trains that wait, beyond the two that an unhurried sender sends at once. It enables the
// lookahead if workers are available and the lane has a backlog.
func (r *Receiver) reportBacklog() {
	jobs := r.lane.OpenJobs
	if r.ahead.enabled = jobs.Available(r.now); !r.ahead.enabled {
		return
	}
	jobs.ReportBacklog(r.queue.bulk - 2)
	r.ahead.enabled = r.queue.bulk > 1 && jobs.Backlogged()
}

// fillAhead takes elements from the queue: one, or as many as workers can open. It handles sparse ones at once, unless older elements of
// their flow are in the ring, until it has handled limit bytes. It returns the number of bytes that it has handled.
func (r *Receiver) fillAhead(limit int) (bytes int) {
	l := &r.ahead
	for bytes < limit && (l.tail == l.head || r.ahead.enabled && l.tail-l.head < lane.MaxJobs && !r.lane.OpenJobs.Full()) {
		e, sparse, ok := r.queue.pop(r.now)
		switch {
		case !ok:
			return bytes
		case sparse && e.N < bulkThreshold && !l.contains(e.flow):
			bytes += e.N
			r.handleElement(&e)
			continue
		}
		a := &l.jobs[l.tail%lane.MaxJobs]
		l.tail++
		a.element, a.submitted = e, false
		if r.ahead.enabled {
			r.submit(a)
		}
	}
	return bytes
}

// submit submits an element as a job if it consists of data messages of one session only.
func (r *Receiver) submit(a *openJob) {
	train := a.train()
	if a.N < bulkThreshold || a.Mark || a.Truncated || a.SegSize <= 0 || session.Messages(len(train), a.SegSize) > maxOpenMessages {
		return
	}
	if kind, _ := wire.Classify(train[:min(a.SegSize, len(train))]); kind != wire.TypeData || len(dataRun(train, a.SegSize)) < len(train) {
		return
	}
	s, _ := r.lane.Shared.Sessions.Lookup(wire.ReceiverIndex(train))
	if s == nil {
		return
	}
	keys := s.Keys.Load()
	if keys == nil {
		return
	}
	a.session, a.keys, a.now, a.submitted = s, keys, r.now, true
	if a.opened == nil {
		a.opened = make([]session.Message, maxOpenMessages)
	}
	r.lane.OpenJobs.Submit(a)
}

// collectAhead delivers a if it was submitted as a job, and reports whether it was.
func (r *Receiver) collectAhead(a *openJob) bool {
	if !a.submitted {
		return false
	}
	r.openSingles()
	r.lane.OpenJobs.Collect(&r.scratch)
	a.keys.AcceptTrain(&r.scratch, a.train(), a.SegSize, a.opened)
	r.deliverOpened(a.session, a.keys, a.train(), a.SegSize, a.opened, a.checksumOK, &a.element)
	r.FlushIfFull()
	a.session, a.keys = nil, nil // as handleQuantum does with the element
	return true
}
