// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// maxOpenMessages bounds the messages of a train that is opened ahead: openJob.checksumOK has a bit for each, and no underlay
// receives longer ones.
const maxOpenMessages = underlay.MaxCoalesced

// lookahead is the trains of the rxQueue that are in the lane's job ring, where workers decrypt them before the lane handles
// them. The lane does everything that depends on order: the replay window, merging, writing. Workers also sum the payload,
// so that only the kernel's copy reads it again: fetching it from another core's cache costs the lane as much as opening it.
type lookahead struct {
	jobs      [maxJobs]openJob // a ring
	submitted uint
	collected uint
	enabled   bool
}

// openJob is the decryption of one received train.
type openJob struct {
	datagrams  *underlay.Datagrams // in the rxQueue
	session    *Session
	keys       *session.Keypair
	now        int64
	opened     []session.Message
	checksumOK uint64 // bit i: the checksums of the packet in opened[i] are correct
}

// Run decrypts the train in place and verifies the checksums of its packets; it implements workpool.Job.
func (a *openJob) Run(s *session.Scratch) {
	d := a.datagrams
	n := a.keys.DecryptTrain(s, a.now, d.Buf[:d.N], d.SegSize, a.opened[:maxOpenMessages])
	a.opened, a.checksumOK = a.opened[:n], 0
	for i := range a.opened {
		plain := a.opened[i].Plain
		if n, ok := packet.Length(plain); ok && offload.ChecksumsOK(plain[:n]) {
			a.checksumOK |= 1 << i
		}
	}
}

// reportBacklog reports the number of bulk trains that wait, beyond the two that an unhurried sender sends at once. It enables
// submitAhead if workers may help.
func (r *receiver) reportBacklog() {
	jobs := r.lane.openJobs
	if r.ahead.enabled = jobs.Available(r.now); !r.ahead.enabled {
		return
	}
	trains := 0
	for k := range r.count {
		if r.handled>>k&1 == 0 && r.at(k).N >= bulkThreshold {
			trains++
		}
	}
	jobs.ReportBacklog(trains - 2)
	r.ahead.enabled = trains > 1 && jobs.Backlogged()
}

// submitAhead submits trains behind datagram k, which the lane handles now, until the job ring is full. Before a small datagram it does
// so only if jobs are pending: there is no time to gain otherwise.
func (r *receiver) submitAhead(k int) {
	jobs := r.lane.openJobs
	if !r.ahead.enabled || r.at(k).N < bulkThreshold && jobs.Pending() == 0 {
		return
	}
	for k++; k < r.count && !jobs.Full(); k++ {
		if (r.handled|r.considered)>>k&1 == 0 {
			r.considered |= 1 << k
			r.submit(r.at(k))
		}
	}
}

// submit submits d as a job if it consists of data messages of one session only. It must be bulk: sparse datagrams may be
// handled before older ones, but jobs are collected in order.
func (r *receiver) submit(d *underlay.Datagrams) {
	train := d.Buf[:d.N]
	if d.N < bulkThreshold || d.Truncated || d.SegSize <= 0 || session.Messages(d.N, d.SegSize) > maxOpenMessages {
		return
	}
	if kind, _ := wire.Classify(train[:min(d.SegSize, d.N)]); kind != wire.TypeData || len(dataRun(train, d.SegSize)) < d.N {
		return
	}
	s, _ := r.lane.engine.Sessions.Lookup(wire.ReceiverIndex(train))
	if s == nil {
		return
	}
	keys := s.Keys.Load()
	if keys == nil {
		return
	}
	l := &r.ahead
	a := &l.jobs[l.submitted%maxJobs]
	l.submitted++
	a.datagrams, a.session, a.keys, a.now = d, s, keys, r.now
	if a.opened == nil {
		a.opened = make([]session.Message, maxOpenMessages)
	}
	r.lane.openJobs.Submit(a)
}

// collectAhead delivers d if it was submitted as a job, and reports whether it was.
func (r *receiver) collectAhead(d *underlay.Datagrams) bool {
	l := &r.ahead
	if l.collected == l.submitted || l.jobs[l.collected%maxJobs].datagrams != d {
		return false
	}
	l.collected++
	a := r.lane.openJobs.Collect(&r.scratch).(*openJob)
	a.keys.AcceptTrain(&r.scratch, d.Buf[:d.N], d.SegSize, a.opened)
	r.deliver(a.session, a.keys, a.opened, a.checksumOK, d)
	a.session, a.keys = nil, nil // the peer may be removed before the slot is used again
	return true
}
