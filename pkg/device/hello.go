// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/engine"
	"github.com/ropewalk/ropewalk/pkg/spread"
	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

const (
	// helloPause is the least time, in nanoseconds, between two hellos to one peer.
	helloPause = int64(250 * time.Millisecond)
	// helloWait is how long, in nanoseconds, an initiator waits for the responder's hello.
	helloWait = helloTries * helloAgain
	// helloTries is how often the responder asks for an answer, and helloAgain, in nanoseconds, for how long each time.
	helloTries = 3
	helloAgain = int64(time.Second)
	// helloRate is how many hellos of one peer are looked at in a second.
	helloRate = 8
)

// helloState is what two ropewalks know of each other. It changes with each handshake: the initiator has signed its
// first message, so the responder says hello, and the initiator answers. A stock peer signs nothing, and is sent nothing.
// Everything in it is guarded by Peer.mu.
type helloState struct {
	theirs wire.Hello // the last from the peer, if why is nil or an errNAT
	why    error      // why there is none to go by
	state  config.PeerSpread

	ropewalk bool   // the peer may be sent hellos: it has signed, or sent one
	asking   int    // hellos that may still be sent until one is answered
	said     []byte // the last hello to the peer, as an answer
	saidAt   int64  // 0 for never
	deadline int64  // when the peer counts as stock, or is asked again; 0 for never
	sayAt    int64  // when the next hello is due; 0 for never
}

// nat tells whether why is a NAT.
func (s *helloState) nat(why error) bool { return errors.As(why, new(*errNAT)) }

// next returns when something is due, 0 for never.
func (s *helloState) next() int64 {
	if s.sayAt != 0 && (s.deadline == 0 || s.sayAt < s.deadline) {
		return s.sayAt
	}
	return s.deadline
}

// forgetHello makes the peer one of which nothing is known. The caller holds mu.
func (p *Peer) forgetHello(why error) {
	p.lane.Gathered.Store(nil)
	p.beginHello(why)
}

func (p *Peer) beginHello(why error) {
	p.hello = helloState{why: why, state: p.hello.state, saidAt: p.hello.saidAt}
	p.lane.Heard.Store(false)
	p.apply()
}

// respread begins anew with a peer that there may be a session with: one side has another endpoint or other wishes. The
// peer may still send from its source ports. The caller holds mu.
func (p *Peer) respread() {
	ropewalk := p.hello.ropewalk
	p.beginHello(errNoSession)
	if p.running && ropewalk && p.lane.Current.Load() != nil {
		p.ask(p.dev.clock())
		p.arm(p.dev.clock())
	}
}

// initiated says that a handshake of ours is complete: if the peer is a ropewalk, it says hello now. The caller holds mu.
func (p *Peer) initiated(now int64) {
	if p.hello.why != nil {
		p.hello.why = errAwaitingHello
	}
	p.hello.deadline = now + helloWait
	p.apply()
}

// ask says hello and wants an answer. The caller holds mu.
func (p *Peer) ask(now int64) {
	s := &p.hello
	if p.dev.spreading.Load().mode == config.SpreadOff {
		return
	}
	s.ropewalk, s.asking = true, helloTries
	if s.why != nil {
		s.why = errAwaitingHello
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
	case s.asking > 0:
		p.say(now)
	default:
		p.forgetHello(errNoHello)
	}
}

// say sends a hello now, or as soon as the last one is long enough ago. The caller holds mu.
func (p *Peer) say(now int64) {
	s := &p.hello
	if s.saidAt != 0 && now-s.saidAt < helloPause {
		s.sayAt = s.saidAt + helloPause
		return
	}
	s.sayAt = 0
	keys := p.lane.Current.Load()
	if !keys.Usable(now) {
		return
	}
	h := p.ours()
	s.said, s.saidAt = wire.AppendHello(s.said[:0], &h), now
	if !s.theirs.Heard {
		p.sayFromSource(s.said)
	}
	if s.asking > 0 {
		s.asking--
		s.deadline = now + helloAgain
		h.Answer = false
	}
	p.dev.engine.Hello(p.lane, keys, 0, wire.AppendHello(nil, &h))
}

// sayFromSource sends a hello from another port than the canonical one, to see whether it arrives. The caller holds mu.
func (p *Peer) sayFromSource(hello []byte) {
	if list := p.dev.sources.unplanned(p.dev.spreadPorts()); len(list) > 0 && !p.hello.nat(p.hello.why) {
		p.dev.engine.Hello(p.lane, p.lane.Current.Load(), list[0], hello)
	}
}

// ours is what there is to say, as an answer. The caller holds mu.
func (p *Peer) ours() wire.Hello {
	ports := p.dev.spreadPorts()
	h := wire.Hello{Gathers: true, Heard: p.lane.Heard.Load(), Answer: true, First: ports.First, Last: ports.Last}
	to, ref := p.lane.Endpoint.Load(), p.dev.port.Load()
	if to == nil || ref == nil {
		return h
	}
	h.Own, h.Peer = netip.AddrPortFrom(to.Src, ref.LocalPort()), to.Dst
	theirs := spread.Ports{First: p.hello.theirs.First, Last: p.hello.theirs.Last}
	if p.dev.cfg.Plan != nil && theirs.Len() > 0 && to.Src.IsValid() && p.hello.why == nil {
		h.Plan = p.dev.cfg.Plan(h.Own, to.Dst.Addr(), p.dev.mark.Load(), theirs)
	}
	return h
}

// mail is a hello on its way from a lane to a worker. Of several only the last arrives.
type mail struct {
	hello  wire.Hello
	from   underlay.Endpoint
	source bool // it, or one that it replaced, came from a source port
}

// replaces makes m the mail of p.
func (m *mail) replaces(p *Peer) {
	for {
		old := p.mail.Load()
		m.source = m.fromSource() || old != nil && old.source
		if p.mail.CompareAndSwap(old, m) {
			return
		}
	}
}

// Hello implements engine.Owner.
func (p *Peer) Hello(plain []byte, from underlay.Endpoint) drop.Reason {
	if p.dev.spreading.Load().mode == config.SpreadOff || !p.helloRate.allow(p.dev.clock()) {
		return drop.HelloUnwanted
	}
	m := &mail{from: from}
	switch err := wire.ParseHello(plain, &m.hello); {
	case errors.Is(err, wire.ErrHelloVersion):
		return drop.HelloVersion
	case err != nil:
		return drop.HelloInvalid
	}
	m.replaces(p)
	p.post(taskHello)
	return drop.None
}

// fromSource tells whether the hello came from a port that it says its sender spreads over.
func (m *mail) fromSource() bool {
	ports := spread.Ports{First: m.hello.First, Last: m.hello.Last}
	return ports.Contains(m.from.Dst.Port()) && m.from.Dst.Port() != m.hello.Own.Port()
}

// Hear implements engine.Owner.
func (p *Peer) Hear() { p.post(taskHello) }

// greet takes the last hello, if there is a new one, and answers if that is wanted or if there is something new to say.
// The caller holds mu.
func (p *Peer) greet(now int64) {
	s := &p.hello
	m := p.mail.Swap(nil)
	if m != nil {
		s.theirs, s.why, s.ropewalk = m.hello, p.findNAT(m), true
		if s.asking == 0 || m.hello.Answer {
			s.asking, s.deadline = 0, 0
		}
		p.gather()
		if m.source {
			p.lane.Heard.Store(true) // not before its ports are known: the peer begins to use them when it is told
		}
		p.apply()
	}
	if !s.ropewalk {
		return
	}
	if m != nil && !m.hello.Answer || p.news() {
		p.say(now)
	}
}

// news tells whether the peer has not been told what is so now. The caller holds mu.
func (p *Peer) news() bool {
	h := p.ours()
	return !bytes.Equal(p.hello.said, wire.AppendHello(nil, &h))
}

// gather lets the peer send from its source ports. The caller holds mu.
func (p *Peer) gather() {
	ports := spread.Ports{First: p.hello.theirs.First, Last: p.hello.theirs.Last}
	if ports.Len() == 0 || p.hello.why != nil {
		p.lane.Gathered.Store(nil)
		return
	}
	if old := p.lane.Gathered.Load(); old == nil || *old != ports {
		p.lane.Gathered.Store(&ports)
	}
}

// findNAT compares where each side is to itself and to the other, as IKE does (RFC 7296, section 2.23). Where a hello
// from a source port comes from says nothing of the canonical port. The caller holds mu.
func (p *Peer) findNAT(m *mail) error {
	seen := m.from.Dst
	if m.fromSource() {
		seen = netip.AddrPortFrom(seen.Addr(), m.hello.Own.Port())
	}
	if differ(m.hello.Own, seen) {
		return &errNAT{behind: "the peer", says: m.hello.Own.String(), seen: seen.String()}
	}
	ref := p.dev.port.Load()
	if ref == nil {
		return nil
	}
	own := netip.AddrPortFrom(m.from.Src, ref.LocalPort())
	if differ(own, m.hello.Peer) {
		return &errNAT{behind: "this host", says: own.String(), seen: m.hello.Peer.String()}
	}
	return nil
}

// differ tells whether two views of one endpoint contradict each other. An address that is not known contradicts none.
func differ(a, b netip.AddrPort) bool {
	known := a.Addr().IsValid() && b.Addr().IsValid()
	return a.Port() != b.Port() || known && a.Addr().WithZone("") != b.Addr().WithZone("")
}

// rate allows so many events in each second.
type rate struct{ word atomic.Uint64 } // second << 8 | events

func (r *rate) allow(now int64) bool {
	second := uint64(now/int64(time.Second)) << 8
	word := r.word.Load()
	if word&^0xff != second {
		r.word.Store(second | 1) // two that begin a second together count as one
		return true
	}
	return word&0xff < helloRate && r.word.Add(1)&0xff <= helloRate
}

var _ engine.Owner = (*Peer)(nil)
