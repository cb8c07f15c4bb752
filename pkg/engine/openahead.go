// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/ropewalk/ropewalk/pkg/offload"
	"github.com/ropewalk/ropewalk/pkg/packet"
	"github.com/ropewalk/ropewalk/pkg/session"
	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

// maxOpenMessages bounds the messages of a train that is opened ahead: arrival.summed has a bit for each, and no way in makes longer ones.
const maxOpenMessages = underlay.MaxCoalesced

// lookahead is those trains of the line that are on the lane's desk, to be decrypted before the lane comes to them. All that
// keeps an order (the replay window, merging, writing) is left to the lane. So is the payload, but for the copy that the kernel
// makes: fetched back from another core's cache, it would cost the lane as much as opening it.
type lookahead struct {
	jobs      [maxJobs]openJob // a ring
	submitted uint
	collected uint
	enabled   bool
}

// openJob is one train that was received.
type openJob struct {
	datagrams  *underlay.Datagrams // ring its place in the line
	session    *Session
	keys       *session.Keypair
	now        int64
	opened     []session.Message
	checksumOK uint64 // bit i: the checksums of the packet in opened[i] are right
}

// Run decrypts the train in place and sums its packets; it implements crew.Job.
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

// reportBacklog tells the desk how many trains wait in the line, beyond the two that a sender sends at once who takes his time, and
// opens it if workers may help.
func (r *receiver) reportBacklog() {
	desk := r.lane.openJobs
	if r.ahead.enabled = desk.Available(r.now); !r.ahead.enabled {
		return
	}
	trains := 0
	for k := range r.count {
		if r.handled>>k&1 == 0 && r.at(k).N >= bulkThreshold {
			trains++
		}
	}
	desk.ReportBacklog(trains - 2)
	r.ahead.enabled = trains > 1 && desk.Backlogged()
}

// submitAhead puts trains on the desk, as many as it holds: those behind element k of the line, which the lane comes to now, if
// that leaves the time.
func (r *receiver) submitAhead(k int) {
	desk := r.lane.openJobs
	if !r.ahead.enabled || r.at(k).N < bulkThreshold && desk.Pending() == 0 {
		return
	}
	for k++; k < r.count && !desk.Full(); k++ {
		if (r.handled|r.considered)>>k&1 == 0 {
			r.considered |= 1 << k
			r.submit(r.at(k))
		}
	}
}

// submit puts an element on the desk if it is one train of one session's data messages and nothing else. It must be bulk: what
// is sparse may be handled before older elements, and work is collected in order.
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

// collectAhead delivers an element if it was put on the desk, and reports whether it was.
func (r *receiver) collectAhead(d *underlay.Datagrams) bool {
	l := &r.ahead
	if l.collected == l.submitted || l.jobs[l.collected%maxJobs].datagrams != d {
		return false
	}
	l.collected++
	a := r.lane.openJobs.Collect(&r.scratch).(*openJob)
	a.keys.AcceptTrain(&r.scratch, d.Buf[:d.N], d.SegSize, a.opened)
	r.deliver(a.session, a.keys, a.opened, a.checksumOK, d)
	a.session, a.keys = nil, nil // the peer may be removed before the ring comes round
	return true
}
