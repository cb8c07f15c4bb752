// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// watch observes the wire. The network's lock guards it.
type watch struct {
	report   *report
	marker   []byte
	plain    bool // data messages but keepalives carry inner packets
	used     map[nonce]struct{}
	sessions map[sessionID]*observedSession
	answered map[sessionID]bool // initiations by the index of their sender; src has sent a response
	heard    map[[2]int]hearing // by receiver and sender: the last data that the receiver has surely accepted
	live     map[instant]int    // data messages that arrived at an instant and may be accepted
	expired  map[instant]int    // those whose session has expired
	duties   duties
	liveness liveness
	counts   []wireCounts // by host
}

// nonce is a nonce under a key: a receiver index stands for the key of one direction.
type nonce struct {
	src     int
	index   uint32
	counter uint64
}

// sessionID is the receiver index of a session, as messages of src have it.
type sessionID struct {
	src   int
	index uint32
}

// observedSession is one direction of a session.
type observedSession struct {
	dst       int
	initiator bool // src has initiated the handshake
	used      bool // dst has surely accepted a message of it
	since     time.Time
	rekeyBy   time.Time // data that src sends after this must be followed by an initiation; zero if its session is young
	rekeyDue  bool      // such data was sent
}

// hearing is the address from which data came, which is the sender's endpoint from then on.
type hearing struct {
	from     netip.AddrPort
	sent, at time.Time
}

// wireCounts counts the datagrams of one host.
type wireCounts struct {
	txData  uint64 // sent, with an inner packet
	rxData  uint64 // arrived, with an inner packet
	rxTotal uint64 // arrived
}

// pastRekey is added to the deadline of a rekey: another handshake may have been tried a moment before, and be retried.
const pastRekey = time.Duration(peer.RekeyTimeout+peer.MaxJitter) + 200*time.Millisecond

// shortTransit is the time within which a message arrives whose session is not replaced meanwhile.
const shortTransit = 3 * time.Second

func newWatch(s *schedule, r *report, m *model) *watch {
	return &watch{
		report: r, marker: m.marker[:], plain: !s.Spread, used: map[nonce]struct{}{}, sessions: map[sessionID]*observedSession{},
		answered: map[sessionID]bool{}, heard: map[[2]int]hearing{},
		live: map[instant]int{}, expired: map[instant]int{}, duties: newDuties(s, r), liveness: newLiveness(s, r, m), counts: make([]wireCounts, s.Hosts+1),
	}
}

// transmit checks a datagram that a host sends to the address to. dst has it, if known.
func (w *watch) transmit(src, dst int, known bool, to netip.AddrPort, d []byte) {
	if bytes.Contains(d, w.marker) {
		w.report.add("plaintext", "host %d sent %d bytes to %v with the content of an inner packet", src, len(d), to)
	}
	kind, _ := wire.Classify(d)
	w.report.note("host %d sends to %v (host %d): %v, index %08x, %d bytes", src, to, dst, kind, wire.ReceiverIndex(d), len(d))
	if !known && to != stranger(silent) && kind != wire.TypeCookieReply {
		w.report.add("endpoint", "host %d sent a message of type %v to an attacker's address", src, kind)
	}
	switch kind {
	case wire.TypeData:
		w.checkEndpoint(src, dst, to)
		w.transmitData(src, d)
	case wire.TypeInitiation:
		w.tried(src, dst)
	case wire.TypeResponse:
		// The responder's keys exist from now on.
		id := sessionID{src, wire.ReceiverIndex(d)}
		w.tried(src, dst) // no initiation follows within 5 s
		w.replaceUnused(dst, src)
		w.sessions[id], w.answered[id] = &observedSession{dst: dst, since: time.Now()}, true
	}
	if known {
		w.duties.transmitted(src, dst, kind, carries(d))
	}
}

// checkEndpoint checks that data goes to the address from which the last data came.
func (w *watch) checkEndpoint(src, dst int, to netip.AddrPort) {
	last, ok := w.heard[[2]int{src, dst}]
	if ok && to != last.from && time.Now().After(last.at) {
		w.report.add("stale", "host %d sent to host %d at %v, but has heard it from %v", src, dst, to, last.from)
	}
}

// carries reports whether a data message is longer than a keepalive.
func carries(d []byte) bool {
	kind, _ := wire.Classify(d)
	return kind == wire.TypeData && len(d) != wire.KeepaliveSize
}

func (w *watch) transmitData(src int, d []byte) {
	n := nonce{src, wire.DataReceiver(d), wire.Counter(d)}
	if _, again := w.used[n]; again {
		w.report.add("nonce", "host %d used counter %d of session %08x twice", src, n.counter, n.index)
	}
	w.used[n] = struct{}{}
	if carries(d) {
		w.counts[src].txData++
	}
	s := w.sessions[sessionID{src, n.index}]
	if s == nil {
		return // a response that was forgotten after a suspend
	}
	age := time.Since(s.since)
	if age > time.Duration(peer.RejectAfterTime) {
		w.report.add("expired", "host %d sent in a session of %v", src, age)
	}
	if w.plain && s.initiator && carries(d) && age >= time.Duration(peer.RekeyAfterTime) {
		w.expectRekey(src, s)
	}
}

// expectRekey checks that an initiator that sends in an old session initiates another at once, unless a handshake was tried a moment
// before.
func (w *watch) expectRekey(src int, s *observedSession) {
	now := time.Now()
	switch {
	case s.rekeyBy.IsZero():
		s.rekeyBy = now.Add(pastRekey)
	case now.Before(s.rekeyBy):
	case s.rekeyDue:
		w.report.add("rekey", "host %d sends to host %d in a session of %v, and has not tried to renew it", src, s.dst, now.Sub(s.since))
		s.rekeyBy = now.Add(time.Hour)
	default:
		s.rekeyDue, s.rekeyBy = true, now.Add(timerSlack)
	}
}

// tried notes that a host has sent a handshake message.
func (w *watch) tried(src, dst int) {
	for id, s := range w.sessions {
		if id.src == src && s.dst == dst {
			s.rekeyBy, s.rekeyDue = time.Time{}, false
		}
	}
}

// replaceUnused forgets the sessions that src has initiated and dst has not seen in use: another one replaces them.
func (w *watch) replaceUnused(src, dst int) {
	for id, s := range w.sessions {
		if id.src == src && s.dst == dst && s.initiator && !s.used {
			delete(w.sessions, id)
		}
	}
}

// arrive notes a datagram that arrives at a host.
func (w *watch) arrive(t *transit) {
	kind, _ := wire.Classify(t.Payload)
	if kind == wire.TypeResponse {
		id := sessionID{t.dst, wire.SenderIndex(t.Payload)}
		if w.sessions[id] == nil {
			w.sessions[id] = &observedSession{dst: t.src, initiator: true, since: time.Now()}
		}
	}
	w.report.note("host %d receives from %v (host %d): %v, index %08x, %d bytes", t.dst, t.From, t.src, kind, wire.ReceiverIndex(t.Payload), len(t.Payload))
	if carries(t.Payload) {
		w.countExpired(t)
	}
	fresh := kind == wire.TypeData && w.fresh(t)
	if fresh {
		w.sessions[sessionID{t.src, wire.DataReceiver(t.Payload)}].used = true
	}
	w.hear(t, fresh)
	w.duties.arrived(t.src, t.dst, kind, fresh && carries(t.Payload))
}

// countExpired counts a data message that arrives. The receiver may have the session for a second less or more than it was observed.
func (w *watch) countExpired(t *transit) {
	s := w.sessions[sessionID{t.src, wire.DataReceiver(t.Payload)}]
	if s != nil && time.Since(s.since) > time.Duration(peer.RejectAfterTime)+shortTransit {
		w.expired[instantAt(t.dst)]++
	} else {
		w.live[instantAt(t.dst)]++
	}
}

// checkExpired checks that no more packets were delivered at any instant than messages of live sessions had arrived.
func (w *watch) checkExpired(deliveredAt map[instant]int) {
	for i := range w.expired {
		if got := deliveredAt[i]; got > w.live[i] {
			w.report.add("expired", "host %d accepted %d packets from %d messages in live and %d in expired sessions at one instant", i.host, got, w.live[i], w.expired[i])
		}
	}
}

// hear notes the address from which data came that moves the endpoint. Other messages may move it or not.
func (w *watch) hear(t *transit, fresh bool) {
	pair := [2]int{t.dst, t.src}
	switch last, ok := w.heard[pair]; {
	case !w.plain || !fresh:
		delete(w.heard, pair)
	case !ok || t.sent.After(last.sent):
		w.heard[pair] = hearing{t.From, t.sent, time.Now()}
	}
}

// fresh reports whether a data message is surely accepted: it is no duplicate, and its session is not near its end.
func (w *watch) fresh(t *transit) bool {
	if t.copy {
		return false
	}
	s := w.sessions[sessionID{t.src, wire.DataReceiver(t.Payload)}]
	return s != nil && time.Since(s.since) < time.Duration(peer.RejectAfterTime)*3/4 && time.Since(t.sent) < shortTransit
}

// accepted reports whether the host at which a message arrived has surely accepted it or never will. An initiation that was refused because
// it came too soon may be accepted later.
func (w *watch) accepted(t *transit) bool {
	kind, _ := wire.Classify(t.Payload)
	return kind != wire.TypeInitiation || w.answered[sessionID{t.dst, wire.SenderIndex(t.Payload)}]
}

// count counts a datagram, also a hostile one, that arrives at a host.
func (w *watch) count(dst int, d []byte) {
	w.counts[dst].rxTotal++
	if carries(d) {
		w.counts[dst].rxData++
	}
}

// disturbed forgets what is expected of a host: its process ends or its clock jumps.
func (w *watch) disturbed(host int) {
	w.duties.forget(host)
	w.liveness.disturbed(host)
	for id, s := range w.sessions {
		if id.src == host || s.dst == host {
			delete(w.sessions, id)
		}
	}
	for pair := range w.heard {
		if pair[0] == host {
			delete(w.heard, pair)
		}
	}
}
