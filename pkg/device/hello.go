// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/spread"
	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

const (
	// helloPause is the least time, in nanoseconds, between two hellos to one peer.
	helloPause = int64(250 * time.Millisecond)
	// helloTries is how many hellos a side sends for want of an answer, and helloAgain, in nanoseconds, how far apart.
	helloTries = 3
	helloAgain = int64(time.Second)
	// helloWait is how long, in nanoseconds, an initiator waits for the responder's hello.
	helloWait = helloTries * helloAgain
)

// hello is what two ropewalks know of each other. It is renewed with each handshake: the initiator has signed its first
// message, so the responder says hello, and the initiator answers. A stock peer signs nothing, and is sent nothing.
// Peer.mu guards it.
type hello struct {
	theirs   wire.Hello // the peer's last
	known    bool       // there is one
	fresh    bool       // it is of this session
	none     error      // reason there is none
	nat      error      // a *natError: what theirs says of the path
	own      netip.Addr // our address that the peer's last came to
	plan     []uint16   // the ports that the peer is to use
	ropewalk bool       // the peer may be sent hellos: it has signed, or sent one

	said     []byte // the last to the peer
	saidAt   int64  // 0 for never
	sayAt    int64  // when the next is due, 0 for never
	tries    int    // how often the peer may still be asked
	deadline int64  // when it has not answered, 0 for never

	state config.PeerSpread // what was last made of all this
}

// settled tells that nothing is left to be asked.
func (s *hello) settled() bool {
	return s.fresh && (s.theirs.Heard || !s.theirs.Gathers || s.nat != nil)
}

// next returns when something is due, 0 for never.
func (s *hello) next() int64 {
	if s.sayAt != 0 && (s.deadline == 0 || s.sayAt < s.deadline) {
		return s.sayAt
	}
	return s.deadline
}

// quiet ends what is under way.
func (s *hello) quiet() { s.sayAt, s.tries, s.deadline = 0, 0, 0 }

// theirPorts are the source ports that the peer says it may use.
func (s *hello) theirPorts() spread.Ports {
	return spread.Ports{First: s.theirs.First, Last: s.theirs.Last}
}

// forgetHello makes the peer one of which nothing is known. The caller holds mu.
func (p *Peer) forgetHello(none error) {
	p.hello = hello{none: none, saidAt: p.hello.saidAt, state: p.hello.state}
	p.dev.selection.plan(p, netip.Addr{}, nil)
	p.engine.Heard.Store(false)
	p.gather()
	p.apply()
}

// renewHellos makes what is known of the path to the peer and, if one of the two has moved, of the one from it, count for
// nothing. The caller holds mu.
func (p *Peer) askAnew(moved bool) {
	s := &p.hello
	s.theirs.Heard, s.fresh = false, false
	if moved {
		s.nat, s.own = nil, netip.Addr{}
		p.engine.Heard.Store(false)
	}
	s.quiet()
	switch {
	case s.known:
	case p.engine.Current.Load() == nil:
		s.none = errNoSession
	default:
		s.none = errNoHello
	}
	p.gather()
	p.apply()
	if p.running && s.ropewalk && p.engine.Current.Load() != nil {
		p.ask(p.dev.clock())
		p.arm(p.dev.clock())
	}
}

// confirmed says that a peer which has signed uses the session that it initiated. The caller holds mu.
func (p *Peer) confirmed(now int64) {
	p.hello.ropewalk, p.hello.fresh = true, false
	p.ask(now)
}

// initiated says that a handshake of ours is complete: if the peer is a ropewalk, it says hello now. The caller holds mu.
func (p *Peer) initiated(now int64) {
	s := &p.hello
	s.fresh = false
	s.quiet()
	s.deadline = now + helloWait
	if !s.known {
		s.none = errAwaitingHello
	}
	p.apply()
}

// ask begins to say hello until there is nothing left to ask. The caller holds mu.
func (p *Peer) ask(now int64) {
	s := &p.hello
	if p.dev.spreading.Load().mode == config.SpreadOff {
		return
	}
	s.tries = helloTries
	if !s.known {
		s.none = errAwaitingHello
		p.apply()
	}
	p.say(now)
}

// hellos does what is due. The caller holds mu.
func (p *Peer) hellos(now int64) {
	s := &p.hello
	switch {
	case s.sayAt != 0 && now >= s.sayAt:
		p.say(now)
	case s.deadline == 0 || now < s.deadline:
	case s.settled():
		s.deadline = 0
	case s.tries > 0:
		p.say(now)
	case s.fresh: // it says hello, and what leaves from other ports does not reach it
		s.deadline = 0
	case p.unanswered():
		s.deadline = now + helloWait
	default:
		p.forgetHello(errNoHello)
	}
}

// unanswered tells that the responder has yet to use the session that we initiated: until then it says no hello. The
// caller holds mu.
func (p *Peer) unanswered() bool {
	b := p.sessions.current
	return b != nil && b.keys.Initiator() && !b.keys.Received()
}

// say sends a hello now, or as soon as the last one is long enough ago. The caller holds mu.
func (p *Peer) say(now int64) {
	s := &p.hello
	if s.saidAt != 0 && now-s.saidAt < helloPause {
		s.sayAt = s.saidAt + helloPause
		return
	}
	keys := p.engine.Current.Load()
	if !keys.Usable(now) {
		s.quiet()
		return
	}
	h := p.ours()
	s.said, s.saidAt, s.sayAt = wire.AppendHello(s.said[:0], &h), now, 0
	if !s.theirs.Heard && s.nat == nil {
		p.sayFromSource(s.said)
	}
	if !s.settled() && s.tries > 0 {
		s.tries--
		s.deadline = now + helloAgain
		h.NoReply = false
	}
	p.dev.engine.SendHello(p.engine, keys, 0, wire.AppendHello(nil, &h))
}

// sayFromSource sends a hello from another port than the canonical one, to see whether it arrives. The caller holds mu.
func (p *Peer) sayFromSource(hello []byte) {
	if list, _ := p.dev.sources.unplanned(p.dev.spreadPorts()); len(list) > 0 {
		p.dev.engine.SendHello(p.engine, p.engine.Current.Load(), int(list[0]), hello)
	}
}

// ours is what there is to say. The caller holds mu.
func (p *Peer) ours() wire.Hello {
	ports := p.dev.spreadPorts()
	h := wire.Hello{
		Gathers: true, Heard: p.engine.Heard.Load(), NoReply: true, First: ports.First, Last: ports.Last, Plan: p.hello.plan,
	}
	if to, ref := p.engine.Endpoint.Load(), p.dev.port.Load(); to != nil && ref != nil {
		own := to.Src
		if !own.IsValid() { // routes have changed; the peer's last hello came to
			own = p.hello.own
		}
		h.Own, h.Peer = netip.AddrPortFrom(own, ref.LocalPort()), to.Dst
	}
	return h
}

// greet takes a hello, nil for none, and answers if that is wanted or if there is something new to say. The caller
// holds mu.
func (p *Peer) greet(m *pendingHello, now int64) {
	s := &p.hello
	wanted := false
	if m != nil {
		wanted = p.take(m)
	}
	if !s.ropewalk {
		return
	}
	if s.settled() {
		s.tries, s.deadline = 0, 0
	}
	if wanted || p.news() {
		p.say(now)
	}
}

// take learns from a hello, and tells whether it is to be answered. The first of a session begins a round of questions,
// and so does one that says that we are no longer heard: the peer was restarted. The caller holds mu.
func (p *Peer) take(m *pendingHello) (wanted bool) {
	s := &p.hello
	deaf := s.theirs.Heard && !m.hello.Heard
	if s.tries == 0 && (deaf || !s.fresh) {
		s.tries = helloTries
	}
	s.theirs, s.known, s.fresh, s.ropewalk = m.hello, true, true, true
	s.own, s.nat = m.from.Src, p.findNAT(m)
	if m.planned {
		s.plan = m.plan
	}
	switch {
	case s.nat != nil: // there is no spreading, and others may have that address
		p.dev.selection.plan(p, netip.Addr{}, nil)
	case m.planned:
		p.dev.selection.plan(p, m.from.Dst.Addr(), m.plan) // before the peer hears of it
	}
	p.gather()
	p.settle(m)
	if m.source {
		p.engine.Heard.Store(true) // not before its ports are known: the peer begins to use them when it is told
	}
	p.apply()
	return deaf || !m.hello.NoReply
}

// news tells whether the peer has not been told what is so now. The caller holds mu.
func (p *Peer) news() bool {
	h := p.ours()
	return !bytes.Equal(p.hello.said, wire.AppendHello(nil, &h))
}

// gather lets the peer send from its source ports, if it has any that can be told from the canonical one. The caller
// holds mu.
func (p *Peer) gather() {
	s := &p.hello
	ports := s.theirPorts()
	if !s.known && p.dev.spreading.Load().mode == config.SpreadOn {
		ports = p.dev.spreadPorts() // the same range at both ends, as with `spread attach`
	}
	if ports.Len() == 0 || s.nat != nil {
		p.engine.Gathered.Store(nil)
		return
	}
	if old := p.engine.Gathered.Load(); old == nil || *old != ports {
		p.engine.Gathered.Store(&ports)
	}
}

// settle makes the endpoint the peer's canonical port: where a hello that says so came from, and not a source port that data
// came from before its hello. The caller holds mu.
func (p *Peer) settle(m *pendingHello) {
	to, canonical := p.engine.Endpoint.Load(), m.hello.Own.Port()
	switch {
	case to == nil || *to == m.from:
	case !m.fromSource():
		p.Roam(m.from)
	case p.hello.nat == nil && canonical != 0 && to.Dst.Port() != canonical && m.ports().Contains(to.Dst.Port()):
		p.engine.Endpoint.CompareAndSwap(to, &underlay.Endpoint{
			Dst: netip.AddrPortFrom(to.Dst.Addr(), canonical), Scope: to.Scope, Src: to.Src,
		})
	}
}
