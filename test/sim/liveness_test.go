// SPDX-License-Identifier: Apache-2.0

package sim

import "time"

const (
	// steadyGap is the longest pause of a steady flow. A session is renewed when it is used between 120 and 180 s of its age, from 165 s on by
	// either side: a flow with longer pauses may miss that time, and then loses the packet that meets the end of the session.
	steadyGap = 10 * time.Second
	// arrivesWithin is the time that a packet of a steady flow may take: it may wait for a session, whose handshake is retried after 5 s.
	arrivesWithin = 10 * time.Second
	// longDelay is a delay of a datagram that counts as its loss.
	longDelay = 2 * time.Second
)

// liveness checks the protocol's promise while hosts are disturbed: as soon as all datagrams between two hosts have arrived for settledAfter, in
// both directions, and nothing has disturbed the two, each packet of a steady flow between them arrives. Others may be disturbed meanwhile.
// The network's lock guards it.
type liveness struct {
	s      *schedule
	report *report
	model  *model
	flows  map[[2]int]*steadyFlow // from a host to another
}

// steadyFlow is what a host sends to another while all datagrams between the two arrive.
type steadyFlow struct {
	cleanFrom   time.Time // all datagrams arrive since then
	since, last time.Time // of the flow's packets; zero: there are none
	pending     []pendingPacket
}

// pendingPacket is a packet that must arrive.
type pendingPacket struct {
	id packetID
	at time.Time
}

func newLiveness(s *schedule, r *report, m *model) liveness {
	return liveness{s: s, report: r, model: m, flows: map[[2]int]*steadyFlow{}}
}

func (l *liveness) flow(src, dst int) *steadyFlow {
	f := l.flows[[2]int{src, dst}]
	if f == nil {
		f = new(steadyFlow)
		l.flows[[2]int{src, dst}] = f
	}
	return f
}

// send notes a packet that a host sends to another.
func (l *liveness) send(id packetID) {
	f, now := l.flow(int(id.src), int(id.dst)), time.Now()
	l.evaluate(f, now)
	if l.s.nated(int(id.dst)) || now.Before(f.cleanFrom) {
		return // a host behind a NAT cannot be reached before it sends
	}
	if f.since.IsZero() || now.Sub(f.last) > steadyGap {
		f.since = now
	}
	f.last = now
	if now.Sub(f.since) >= settledAfter*time.Second {
		f.pending = append(f.pending, pendingPacket{id, now})
	}
}

// lost notes that a datagram between two hosts is lost, or that none may arrive until a time.
func (l *liveness) lost(src, dst int, until time.Time) {
	for _, f := range []*steadyFlow{l.flow(src, dst), l.flow(dst, src)} {
		l.evaluate(f, time.Now())
		*f = steadyFlow{cleanFrom: laterOf(f.cleanFrom, until)}
	}
}

// disturbed notes that a host is disturbed.
func (l *liveness) disturbed(host int) {
	for other := 1; other <= l.s.Hosts; other++ {
		if other != host {
			l.lost(host, other, time.Time{})
		}
	}
}

// evaluate checks the packets that must have arrived by now.
func (l *liveness) evaluate(f *steadyFlow, now time.Time) {
	for len(f.pending) > 0 && now.Sub(f.pending[0].at) > arrivesWithin {
		p := f.pending[0]
		f.pending = f.pending[1:]
		if at := l.model.deliveredAt(p.id); at.IsZero() || at.Sub(p.at) > arrivesWithin {
			l.report.add("liveness", "packet %v did not arrive within %v, although all datagrams between the hosts arrive since %v",
				p.id, arrivesWithin, f.since.Sub(l.report.began))
		}
	}
}

// evaluateAll checks all packets that must have arrived by now.
func (l *liveness) evaluateAll() {
	for _, f := range l.flows {
		l.evaluate(f, time.Now())
	}
}
