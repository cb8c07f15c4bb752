// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"math/rand/v2"
	"testing"
)

const (
	tick    = 50 * ms // the network's delay, one way, and the simulation's step
	recover = 30 * sec
)

type kind int

const (
	initiation kind = iota
	response
	keepalive
	data
)

type message struct {
	kind    kind
	session int
}

type simSession struct {
	created              int64
	initiator, confirmed bool
	sent                 uint64
}

// simPeer is a minimal device around Timers and Activity: sessions are numbers, and a peer that knows the number can decrypt.
type simPeer struct {
	sim      *sim
	timers   Timers
	act      Activity
	next     int64
	sessions map[int]*simSession
	current  int // the session to send on, 0 for none
	offered  int // the session that our initiation in flight offers
	staged   bool
	talks    bool // its application sends once per second
	heard    int64
	out      []message
	checks   int // at the timers
}

type sim struct {
	now   int64
	r     *rand.Rand
	loss  int // percent
	ids   int
	peers [2]*simPeer
}

func newSim(seed uint64) *sim {
	s := &sim{now: t0, r: rand.New(rand.NewPCG(seed, 6))}
	for i := range s.peers {
		s.peers[i] = &simPeer{sim: s}
		s.peers[i].restart()
	}
	return s
}

func (s *sim) run(d int64) {
	for end := s.now + d; s.now < end; {
		s.now += tick
		in := [2][]message{s.peers[1].take(), s.peers[0].take()}
		for i, p := range s.peers {
			for _, m := range in[i] {
				if s.r.IntN(100) >= s.loss {
					p.receive(m)
				}
			}
			p.step()
		}
	}
}

func (p *simPeer) take() []message {
	out := p.out
	p.out = nil
	return out
}

func (p *simPeer) step() {
	now := p.sim.now
	if p.next != 0 && p.next <= now {
		actions := p.timers.Fire(now, &p.act)
		p.apply(actions)
		p.updateNext()
	}
	if p.talks && now/tick%20 == 0 {
		p.send(data)
	}
}

func (p *simPeer) updateNext() {
	p.checks++
	p.next = p.timers.Next(p.sim.now, &p.act)
}

func (p *simPeer) apply(actions Actions) {
	if actions.Has(EraseSessions) {
		clear(p.sessions)
		p.current, p.offered = 0, 0
	}
	if actions.Has(GiveUp) {
		p.staged = false
	}
	if actions.Has(SendInitiation) {
		p.initiate()
	}
	if actions.Has(SendKeepalive) {
		p.send(keepalive)
	}
}

func (p *simPeer) initiate() {
	p.sim.ids++
	p.offered = p.sim.ids
	p.out = append(p.out, message{initiation, p.offered})
	p.act.Sent(p.sim.now, false)
	p.timers.InitiationSent(p.sim.now, p.sim.r.Int64N(MaxJitter))
	p.updateNext()
}

func (p *simPeer) want() {
	if p.timers.HandshakeWanted(p.sim.now) {
		p.initiate()
	}
	p.updateNext()
}

func (p *simPeer) usable(id int) *simSession {
	if s := p.sessions[id]; s != nil && p.sim.now-s.created < RejectAfterTime {
		return s
	}
	return nil
}

func (p *simPeer) send(k kind) {
	s := p.usable(p.current)
	if s == nil {
		p.staged = p.staged || k == data
		p.want()
		return
	}
	p.out = append(p.out, message{k, p.current})
	s.sent++
	p.act.Sent(p.sim.now, k == data)
	if RekeyDue(p.sim.now, s.created, s.initiator, s.sent, false) {
		p.want()
	}
}

// begin starts to send on a session, with what is staged or a keepalive to confirm it.
func (p *simPeer) begin(id int) {
	p.current = id
	p.timers.HandshakeComplete()
	p.updateNext()
	k := keepalive
	if p.staged {
		k, p.staged = data, false
	}
	if p.sessions[id].initiator || k == data {
		p.send(k)
	}
}

func (p *simPeer) receive(m message) {
	now := p.sim.now
	switch m.kind {
	case initiation:
		p.act.Received(now, false)
		p.sessions[m.session] = &simSession{created: now}
		p.out = append(p.out, message{response, m.session})
		p.act.Sent(now, false)
		p.timers.SessionDerived(now)
		p.updateNext()
	case response:
		if m.session == p.offered {
			p.offered = 0
			p.act.Received(now, false)
			p.sessions[m.session] = &simSession{created: now, initiator: true, confirmed: true}
			p.timers.SessionDerived(now)
			p.begin(m.session)
		}
	default:
		p.receiveData(m)
	}
}

func (p *simPeer) receiveData(m message) {
	s := p.usable(m.session)
	if s == nil {
		return
	}
	p.act.Received(p.sim.now, m.kind == data)
	if m.kind == data {
		p.heard = p.sim.now
	}
	if !s.confirmed {
		s.confirmed = true
		p.begin(m.session)
	}
	if s := p.sessions[p.current]; s != nil && RekeyDue(p.sim.now, s.created, s.initiator, s.sent, true) {
		p.want()
	}
}

// restart forgets everything, as a reboot does.
func (p *simPeer) restart() {
	*p = simPeer{sim: p.sim, sessions: map[int]*simSession{}, talks: p.talks}
	p.act.Waker = p
}

// Wake implements Waker.
func (p *simPeer) Wake() { p.updateNext() }

// After any loss and any restart, both applications receive data again soon after the network recovers.
func TestTwoPeersAlwaysRecoverFromLoss(t *testing.T) {
	for seed := range uint64(40) {
		s := newSim(seed)
		who := s.r.IntN(3)
		s.peers[0].talks, s.peers[1].talks = who != 1, who != 2
		for range 6 {
			s.loss = []int{100, 60, 30, 0}[s.r.IntN(4)]
			s.run(s.r.Int64N(250) * sec)
			if s.r.IntN(3) == 0 {
				s.peers[s.r.IntN(2)].restart()
			}
			s.loss = 0
			s.run(recover)
			for i, p := range s.peers {
				if s.peers[1-i].talks && s.now-p.heard > 2*sec {
					t.Fatalf("seed %d, after %d s: peer %d has received nothing for %d ms, want at most 2000", seed, (s.now-t0)/sec, i, (s.now-p.heard)/ms)
				}
			}
		}
	}
}

// Without loss the stream never pauses: sessions are replaced before they end, whichever peer sends.
func TestTwoPeersRekeyWithoutAPause(t *testing.T) {
	for who := range 3 {
		s := newSim(uint64(who))
		s.peers[0].talks, s.peers[1].talks = who != 1, who != 2
		s.run(5 * sec)
		for range 1000 {
			s.run(sec)
			for i, p := range s.peers {
				if s.peers[1-i].talks && s.now-p.heard > 1100*ms {
					t.Fatalf("talkers %d, after %d s: peer %d has received nothing for %d ms, want at most 1100", who, (s.now-t0)/sec, i, (s.now-p.heard)/ms)
				}
			}
		}
		if s.ids < 5 || s.ids > 20 {
			t.Errorf("talkers %d: got %d handshakes in 1000 s, want 5 to 20", who, s.ids)
		}
	}
}

func TestIdlePeersFallSilent(t *testing.T) {
	s := newSim(1)
	s.peers[0].talks = true
	s.run(10 * sec)
	s.peers[0].talks = false
	s.run(30 * sec)
	handshakes, checks := s.ids, s.checks()
	for range 2000 {
		s.run(sec)
		if len(s.peers[0].out)+len(s.peers[1].out) != 0 {
			t.Fatalf("after %d s without data: got a message sent, want none", (s.now-t0)/sec)
		}
	}
	if s.ids != handshakes {
		t.Errorf("got %d handshakes without data, want 0", s.ids-handshakes)
	}
	if n := s.checks() - checks; n != 2 { // each erases its keys
		t.Errorf("got %d timer checks without data, want 2", n)
	}
}

// answered is an owner of timers whose peer answers every train with a keepalive.
type answered struct {
	timers Timers
	act    Activity
	now    int64
	next   int64
	woken  int
}

func (p *answered) Wake() {
	p.woken++
	p.next = p.timers.Next(p.now, &p.act)
}

// TestKeepalivesDoNotMakeTrafficWakeTheTimersMoreOften: a peer may send as many as it likes, also to do harm.
func TestKeepalivesDoNotMakeTrafficWakeTheTimersMoreOften(t *testing.T) {
	p := &answered{now: t0}
	p.act.Waker = p
	p.timers.SessionDerived(p.now)
	p.Wake()
	const tens = 12
	for range 10000 * tens { // one per millisecond
		p.now += sec / 1000
		if due(p.next, p.now) {
			p.timers.Fire(p.now, &p.act)
			p.next = p.timers.Next(p.now, &p.act)
		}
		p.act.Sent(p.now, true)
		p.act.Received(p.now, false)
	}
	if p.woken > 2*(tens+1) {
		t.Errorf("got %d timer wakes in %d s, want at most %d", p.woken, 10*tens, 2*(tens+1))
	}
}

// checks is how often the two have checked their timers.
func (s *sim) checks() int { return s.peers[0].checks + s.peers[1].checks }

// However many trains there are, their timers are checked about every ten seconds.
func TestTrafficHardlyEverWakesTheTimers(t *testing.T) {
	s := newSim(1)
	s.peers[0].talks, s.peers[1].talks = true, true
	s.run(10 * sec)
	checks, handshakes := s.checks(), s.ids
	s.run(1000 * sec)
	// Each peer: the deadline that comes, and the wait that then begins. A handshake is an event or two for each.
	if n, most := s.checks()-checks, 2*2*101+8*(s.ids-handshakes); n > most {
		t.Errorf("got %d timer checks of two peers in 1000 s, want at most %d", n, most)
	}
}
