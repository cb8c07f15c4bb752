// SPDX-License-Identifier: Apache-2.0

package fqcodel

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// segment is the size of a packet in the simulation.
const segment = 1500

// burst is an element of the simulation: packets of one sender.
type burst struct {
	sender    int
	packets   int
	sent      int64
	signalled bool
}

// ack tells a sender that a burst has arrived, or that it was lost.
type ack struct {
	burst
	at int64
}

// sender is a TCP sender with an unlimited amount of data, a simplified CUBIC (RFC 9438). Windows are in packets.
type sender struct {
	window   float64
	inFlight int
	wMax     float64 // window before the last reduction
	reno     float64 // window that Reno would have
	epoch    int64   // time of the last reduction; 0 in slow start
}

// receive handles an acknowledgement: a signal reduces the window at most once per round trip, otherwise the window grows.
func (s *sender) receive(a ack) {
	const beta, c = 0.7, 0.4
	s.inFlight -= a.packets
	if a.signalled && a.sent >= s.epoch {
		s.wMax, s.epoch = s.window, a.at
		s.window = max(2, s.window*beta)
		s.reno = s.window
		return
	}
	if s.epoch == 0 {
		s.window += float64(a.packets)
		return
	}
	t := float64(a.at-s.epoch) / 1e9
	k := math.Cbrt(s.wMax * (1 - beta) / c)
	s.reno += 3 * (1 - beta) / (1 + beta) * float64(a.packets) / s.window
	s.window = max(s.window, s.reno, c*(t-k)*(t-k)*(t-k)+s.wMax)
}

// loop is a closed loop in virtual time: senders, a queue in front of a server of fixed rate, and acknowledgements after a round trip.
type loop struct {
	q        *Queue[burst]
	senders  []sender
	acks     []ack // on their way, in order of time
	rtt      time.Duration
	perByte  float64 // nanoseconds
	train    int     // most packets of a burst
	now      int64
	busy     int64 // the server is, until then
	served   int   // packets
	standing []int64
	least    int64 // least sojourn time of the current interval
}

func newLoop(seed uint64, senders, train int, rtt time.Duration, bitsPerSecond float64, drops bool) *loop {
	rnd := rand.New(rand.NewPCG(seed, uint64(senders)))
	l := &loop{rtt: rtt, perByte: 8e9 / bitsPerSecond, train: train, senders: make([]sender, senders), now: 1, least: math.MaxInt64}
	l.q = New(Config[burst]{
		Params: internet, Flows: 64, Quantum: 16 << 10, Elements: 1 << 14, Bytes: 16 << 20,
		Signal: func(b *burst) bool {
			b.signalled = true
			if !drops {
				return false
			}
			if b.packets > 1 {
				l.served-- // the rest is served with the burst
				return false
			}
			l.acknowledge(*b)
			return true
		},
	})
	for i := range l.senders { // the first acknowledgement starts a sender
		l.senders[i].window = 10
		l.acks = append(l.acks, ack{burst{sender: i}, 1 + rnd.Int64N(int64(rtt))})
	}
	slices.SortFunc(l.acks, func(a, b ack) int { return cmp.Compare(a.at, b.at) })
	return l
}

// acknowledge tells the sender of b after a round trip.
func (l *loop) acknowledge(b burst) { l.acks = append(l.acks, ack{b, l.now + int64(l.rtt)}) }

// send sends what the window of sender i allows, in bursts of an eighth of the window as TSO builds them.
func (l *loop) send(i int) {
	s := &l.senders[i]
	size := min(max(int(s.window/8), 1), l.train)
	for s.inFlight+size <= int(s.window) {
		for l.q.Full() {
			b, ok := l.q.PopFattest()
			if !ok {
				panic("queue is full and empty")
			}
			b.signalled = true
			l.acknowledge(b)
		}
		s.inFlight += size
		l.q.Push(uint32(i), burst{sender: i, packets: size, sent: l.now}, size*segment, l.now)
	}
}

// serve takes the next burst if the server is idle.
func (l *loop) serve() {
	if l.busy > l.now {
		return
	}
	b, _, ok := l.q.Pop(l.now)
	if !ok {
		return
	}
	l.least = min(l.least, l.now-b.sent)
	l.served += b.packets
	l.busy = l.now + int64(float64(b.packets*segment)*l.perByte)
	l.acknowledge(b)
}

// next advances the time to the next event.
func (l *loop) next() {
	next := int64(math.MaxInt64)
	if l.q.Len() > 0 {
		next = l.busy
	}
	if len(l.acks) > 0 {
		next = min(next, l.acks[0].at)
	}
	l.now = next
}

// run runs for d, and records the least sojourn time of each interval.
func (l *loop) run(d time.Duration) {
	until, record := l.now+int64(d), l.now+int64(internet.Interval)
	for l.now < until {
		for len(l.acks) > 0 && l.acks[0].at <= l.now {
			a := l.acks[0]
			l.acks = l.acks[1:]
			l.senders[a.sender].receive(a)
			l.send(a.sender)
		}
		l.serve()
		for ; l.now >= record; record += int64(internet.Interval) {
			l.standing, l.least = append(l.standing, l.least), math.MaxInt64
		}
		l.next()
	}
}

// converged runs l until it has converged, and then for a minute. It returns the longest standing queue of an interval in this minute, and
// the share of the time in which the server was busy.
func converged(l *loop) (standing time.Duration, utilisation float64) {
	l.run(30 * time.Second)
	l.standing, l.served = nil, 0
	start := l.now
	l.run(time.Minute)
	return time.Duration(slices.Max(l.standing)), float64(l.served*segment) * l.perByte / float64(l.now-start)
}

func TestStandingQueueConvergesAtFullUtilisation(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, which has nothing to find here, takes minutes")
	}
	for _, tt := range []struct {
		name           string
		senders, train int
		bitsPerSecond  float64
	}{
		{"packets of one sender", 1, 1, 100e6},
		{"packets of 4 senders", 4, 1, 100e6},
		{"trains of one sender", 1, 43, 1e9},
		{"trains of 4 senders", 4, 43, 1e9},
		{"trains of 64 senders", 64, 43, 1e9},
	} {
		for _, rtt := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond} {
			for _, drops := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/rtt=%v/drops=%v", tt.name, rtt, drops), func(t *testing.T) {
					standing, used := converged(newLoop(1, tt.senders, tt.train, rtt, tt.bitsPerSecond, drops))
					t.Logf("standing queue %v, utilisation %.3f", standing, used)
					if standing >= 2*internet.Target || used < 0.9 {
						t.Errorf("standing queue %v, utilisation %.3f", standing, used)
					}
				})
			}
		}
	}
}
