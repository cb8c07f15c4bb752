// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// timerSlack is how much later than the protocol's deadline a message may be sent: the time by which timers are coalesced, the jitter of
// handshakes and the resolution of peer.Activity.
const timerSlack = (269 + 334 + 100) * time.Millisecond

// keepaliveEvery is the persistent keepalive of hosts behind a NAT.
const keepaliveEvery = 25 * time.Second

// duties are the messages that the protocol's timers owe (WireGuard paper §6.5): a keepalive after data was received, a new handshake
// after data was not answered, and persistent keepalives. Only schedules without spread are exact enough.
type duties struct {
	s      *schedule
	report *report
	of     map[[2]int]*duty // of a host to another
	off    bool             // persistent keepalives are off
}

// duty is what one host owes to another.
type duty struct {
	keepaliveBy time.Time // zero: no keepalive is owed
	handshakeBy time.Time // zero: all data was answered
	activeAt    time.Time // the last datagram in either direction; zero: not known
	triedAt     time.Time // the last initiation, without a response since
}

func newDuties(s *schedule, r *report) duties { return duties{s: s, report: r, of: map[[2]int]*duty{}} }

func (d *duties) get(src, dst int) *duty {
	x := d.of[[2]int{src, dst}]
	if x == nil {
		x = new(duty)
		d.of[[2]int{src, dst}] = x
	}
	return x
}

// transmitted notes a message from src to dst.
func (d *duties) transmitted(src, dst int, kind wire.Type, data bool) {
	if d.s.Spread {
		return
	}
	x, now := d.get(src, dst), time.Now()
	d.check(src, dst, x, now)
	x.keepaliveBy, x.activeAt = time.Time{}, now
	switch {
	case kind == wire.TypeInitiation:
		x.handshakeBy, x.triedAt = time.Time{}, now
	case data && x.handshakeBy.IsZero():
		x.handshakeBy = now.Add(time.Duration(peer.KeepaliveTimeout+peer.RekeyTimeout) + timerSlack)
	}
}

// arrived notes a message that arrives. fresh: it has data and is surely accepted.
func (d *duties) arrived(src, dst int, kind wire.Type, fresh bool) {
	if d.s.Spread {
		return
	}
	x, now := d.get(dst, src), time.Now()
	d.check(dst, src, x, now)
	x.handshakeBy, x.activeAt = time.Time{}, now
	if kind == wire.TypeResponse {
		x.triedAt = time.Time{}
	}
	// A host that gives a handshake up, which it may do after its last initiation, no longer owes a keepalive.
	trying := now.Sub(x.triedAt) < time.Duration(peer.RekeyTimeout)+timerSlack
	if fresh && !trying && x.keepaliveBy.IsZero() {
		x.keepaliveBy = now.Add(time.Duration(peer.KeepaliveTimeout) + timerSlack)
	}
}

// check reports what a host should have done before now.
func (d *duties) check(src, dst int, x *duty, now time.Time) {
	if !x.keepaliveBy.IsZero() && now.After(x.keepaliveBy) {
		d.report.add("keepalive", "host %d has not answered data of host %d, and sent no keepalive, by %v", src, dst, x.keepaliveBy.Sub(d.report.began))
		x.keepaliveBy = time.Time{}
	}
	if !x.handshakeBy.IsZero() && now.After(x.handshakeBy) {
		d.report.add("handshake", "host %d got no answer of host %d, and started no new handshake, by %v", src, dst, x.handshakeBy.Sub(d.report.began))
		x.handshakeBy = time.Time{}
	}
	due := x.activeAt.Add(keepaliveEvery + timerSlack)
	if d.s.nated(src) && !d.off && !x.activeAt.IsZero() && now.After(due) {
		d.report.add("persistent", "host %d sent no persistent keepalive to host %d by %v", src, dst, due.Sub(d.report.began))
		x.activeAt = time.Time{}
	}
}

// checkAll checks all hosts now.
func (d *duties) checkAll() {
	for pair, x := range d.of {
		d.check(pair[0], pair[1], x, time.Now())
	}
}

// forget forgets what a host owes, since it was disturbed.
func (d *duties) forget(host int) {
	for pair := range d.of {
		if pair[0] == host {
			delete(d.of, pair)
		}
	}
}
