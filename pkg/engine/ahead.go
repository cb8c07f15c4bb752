// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/ropewalk/ropewalk/pkg/offload"
	"github.com/ropewalk/ropewalk/pkg/packet"
	"github.com/ropewalk/ropewalk/pkg/session"
	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

// maxOpened bounds the messages of a train that is opened ahead: arrival.summed has a bit for each, and no way in makes longer ones.
const maxOpened = underlay.MaxCoalesced

// lookahead is those trains of the line that are on the lane's desk, to be decrypted before the lane comes to them. All that
// keeps an order (the replay window, merging, writing) is left to the lane. So is the payload, but for the copy that the kernel
// makes: fetched back from another core's cache, it would cost the lane as much as opening it.
type lookahead struct {
	arrivals  [ahead]arrival // a ring
	offered   uint
	collected uint
	open      bool
}

// arrival is one train that was received.
type arrival struct {
	element *underlay.Datagrams // in its place in the line
	session *Session
	keys    *session.Keypair
	now     int64
	opened  []session.Message
	summed  uint64 // bit i: the checksums of the packet in opened[i] are right
}

// Do decrypts the train in place and sums its packets; it implements crew.Work.
func (a *arrival) Do(s *session.Scratch) {
	d := a.element
	n := a.keys.DecryptTrain(s, a.now, d.Buf[:d.N], d.SegSize, a.opened[:maxOpened])
	a.opened, a.summed = a.opened[:n], 0
	for i := range a.opened {
		plain := a.opened[i].Plain
		if n, ok := packet.Length(plain); ok && offload.ChecksumsOK(plain[:n]) {
			a.summed |= 1 << i
		}
	}
}

// press tells the desk how many trains wait in the line, beyond the two that a sender sends at once who takes his time, and
// opens it if workers may help.
func (r *receiver) press() {
	desk := r.lane.opening
	if r.ahead.open = desk.Open(r.now); !r.ahead.open {
		return
	}
	trains := 0
	for k := range r.count {
		if r.done>>k&1 == 0 && r.at(k).N >= eager {
			trains++
		}
	}
	desk.Press(trains - 2)
	r.ahead.open = trains > 1 && desk.Pressed()
}

// lookAhead puts trains on the desk, as many as it holds: those behind element k of the line, which the lane comes to now, if
// that leaves the time.
func (r *receiver) lookAhead(k int) {
	desk := r.lane.opening
	if !r.ahead.open || r.at(k).N < eager && desk.Waiting() == 0 {
		return
	}
	for k++; k < r.count && !desk.Full(); k++ {
		if (r.done|r.seen)>>k&1 == 0 {
			r.seen |= 1 << k
			r.offer(r.at(k))
		}
	}
}

// offer puts an element on the desk if it is one train of one session's data messages and nothing else. It must be bulk: what
// is sparse may be handled before older elements, and work is collected in order.
func (r *receiver) offer(d *underlay.Datagrams) {
	train := d.Buf[:d.N]
	if d.N < eager || d.Truncated || d.SegSize <= 0 || session.Messages(d.N, d.SegSize) > maxOpened {
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
	a := &l.arrivals[l.offered%ahead]
	l.offered++
	a.element, a.session, a.keys, a.now = d, s, keys, r.now
	if a.opened == nil {
		a.opened = make([]session.Message, maxOpened)
	}
	r.lane.opening.Offer(a)
}

// openedAhead delivers an element if it was put on the desk, and reports whether it was.
func (r *receiver) openedAhead(d *underlay.Datagrams) bool {
	l := &r.ahead
	if l.collected == l.offered || l.arrivals[l.collected%ahead].element != d {
		return false
	}
	l.collected++
	a := r.lane.opening.Collect(&r.scratch).(*arrival)
	a.keys.AcceptTrain(&r.scratch, d.Buf[:d.N], d.SegSize, a.opened)
	r.deliver(a.session, a.keys, a.opened, a.summed, d)
	a.session, a.keys = nil, nil // the peer may be removed before the ring comes round
	return true
}
