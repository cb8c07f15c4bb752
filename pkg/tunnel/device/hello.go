// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// renewHellos restarts the exchange with every peer. moved means that the local endpoint changed. The caller holds mu.
func (d *Device) renewHellos(moved bool) {
	for _, p := range d.peers {
		p.mu.Lock()
		p.renewHello(moved)
		p.mu.Unlock()
	}
}

// updateSpray tells all peers that the configuration of spraying has changed. The caller holds Device.mu.
func (d *Device) updateSpray() {
	for _, p := range d.peers {
		p.mu.Lock()
		p.updateSpread()
		if p.running && p.hello.ropewalk && p.controlKeys() != nil {
			p.queryHello(p.dev.clock())
			p.armTimer(p.dev.clock())
		}
		p.mu.Unlock()
	}
}

// resetHello discards all knowledge of the peer; reason says why there is none. The caller holds mu.
func (p *Peer) resetHello(reason error) {
	p.hello = helloExchange{remote: noHello, unknown: reason, sentAt: p.hello.sentAt}
	p.quantum.machine.Load().SetOffers(postquantum.OffersUnknown)
	p.dev.selection.plan(p, netip.Addr{}, nil)
	p.engine.Heard.Store(false)
	p.updateGathered()
	p.updateSpread()
	p.stopPathMTU()
}

// followRoam learns anew what depends on the endpoint: a hello, the route, the path MTU. The route may lead into the tunnel, so its lookup does not
// wait for a round: lookUpRoute has a pace of its own. The caller holds mu.
func (p *Peer) followRoam(now int64) {
	if to := p.engine.Endpoint.Load(); to == nil || to.Dst.Addr() != p.path.proven {
		p.path.proven = netip.Addr{}
	}
	p.discardHello(true)
	p.forgetReports()
	p.requestRoute()
	p.beginRoamRound(now)
}

// followDeferredRoam is the part of followRoam that was due later. The caller holds mu.
func (p *Peer) followDeferredRoam(now int64) {
	if p.path.roams.due.Load() {
		p.beginRoamRound(now)
	}
}

// beginRoamRound begins a round of hellos and lookups, or leaves it for later. A hello that came in a pause is handled now, and the peer has the
// whole time to send one. The caller holds mu.
func (p *Peer) beginRoamRound(now int64) {
	if !p.path.roams.begin(now) {
		return
	}
	p.forgetPathLimits()
	p.probing.leavePath()
	p.updatePathMTU(now) // the limit of the last search holds
	if x := &p.hello; x.deadline != 0 {
		x.deadline = max(x.deadline, now+helloWait)
	}
	if p.requests.hellos.keepOnly(p.engine.Endpoint.Load()) {
		p.post(taskHello)
	}
	p.requestRoute()
	p.queryAgain()
}

// renewHello discards what the peer confirmed about the path to it and, if either side has moved, what is known about the
// path from it. Then it queries the peer again, if there is a session. The caller holds mu.
func (p *Peer) renewHello(moved bool) {
	p.discardHello(moved)
	if moved {
		p.forgetPathLimits()
		p.probing.leavePath()
		p.applyPathMTU()
		p.requests.hellos.discard()
		p.requestRoute()
	}
	p.queryAgain()
}

// queryAgain queries the peer after discardHello, if there is a session. The caller holds mu.
func (p *Peer) queryAgain() {
	if p.running && p.hello.ropewalk && p.controlKeys() != nil {
		p.queryHello(p.dev.clock())
		p.armTimer(p.dev.clock())
	}
}

// discardHello is renewHello without queries. The caller holds mu.
func (p *Peer) discardHello(moved bool) {
	p.noteChange()
	x := &p.hello
	if x.remote != noHello {
		x.remote.Heard = false
		if moved {
			x.remote.Plan = nil
		}
	}
	if moved {
		x.nat, x.localAddr, x.plan = nil, netip.Addr{}, nil
		p.dev.selection.plan(p, netip.Addr{}, nil)
		p.engine.Heard.Store(false)
	}
	awaits := x.state == helloAwaiting && !x.ropewalk // of a responder that may be a ropewalk: it sends the first hello
	if !awaits {
		x.handle(helloRenew)
	}
	switch {
	case x.remote != noHello:
	case p.controlKeys() == nil && p.sessions.next != nil: // the reason that handleInitiation has set stays
	case p.controlKeys() == nil:
		x.unknown = errNoSession
	case awaits || x.ropewalk:
		x.unknown = errAwaitingHello
	default:
		x.unknown = errNoHello
	}
	p.updateGathered()
	p.updateSpread()
}

// helloSessionConfirmed starts the exchange: the peer uses the session that it initiated with a signed initiation. The
// caller holds mu.
func (p *Peer) helloSessionConfirmed(now int64) {
	p.hello.ropewalk = true
	p.hello.handle(helloConfirmed)
	p.queryHello(now)
}

// helloSessionInitiated waits for the peer's hello: our handshake is complete. The caller holds mu.
func (p *Peer) helloSessionInitiated(now int64) {
	x := &p.hello
	x.handle(helloInitiated)
	x.deadline = now + helloWait
	if x.remote == noHello {
		x.unknown = errAwaitingHello
	}
	p.updateSpread()
}

// queryHello starts a round of queries. The caller holds mu.
func (p *Peer) queryHello(now int64) {
	if !p.announces() {
		return
	}
	p.hello.handle(helloQuery)
	if p.hello.remote == noHello {
		p.hello.unknown = errAwaitingHello
		p.updateSpread()
	}
	p.sendHello(now)
}

// runHelloTimer does what is due. The caller holds mu.
func (p *Peer) runHelloTimer(now int64) {
	x := &p.hello
	switch {
	case p.path.roams.due.Load():
	case x.sendAt != 0 && now >= x.sendAt:
		p.sendHello(now)
	case x.deadline == 0 || now < x.deadline:
	case x.tries > 0:
		p.sendHello(now)
	case x.state.received(): // the peer sends hellos, but messages from our other source ports do not reach it
		x.handle(helloTimeout)
		p.updateSpread()
	case p.awaitsFirstMessage():
		p.logUp(true)
		x.deadline = now + max(helloWait, now-p.sessions.current.keys.Created()) // doubles: a server may never send first
	default:
		p.resetHello(errNoHello)
	}
}

// awaitsFirstMessage reports whether the responder has not used the session that we initiated. Until then it sends no
// hello. The caller holds mu.
func (p *Peer) awaitsFirstMessage() bool {
	b := p.sessions.current
	return b != nil && b.keys.Initiator() && !b.keys.Received()
}

// sendHello sends a hello now, or schedules it helloPause after the last one. The caller holds mu.
func (p *Peer) sendHello(now int64) {
	x := &p.hello
	if x.sentAt != 0 && now-x.sentAt < helloPause {
		x.sendAt = x.sentAt + helloPause
		return
	}
	keys := p.controlKeys()
	if !keys.Usable(now) {
		x.handle(helloSessionExpired)
		return
	}
	h := p.localHello()
	x.sent, x.sentAt, x.sendAt = wire.AppendHello(x.sent[:0], &h), now, 0
	if !x.remote.Heard && x.nat == nil && p.dev.spreading.Load().mode != config.SpreadOff {
		p.sendHelloFromSource(x.sent)
	}
	if x.tries > 0 {
		x.querySent(now)
		h.NoReply = false
	}
	p.sendControl(keys, 0, wire.AppendHello(nil, &h))
}

// sendHelloFromSource sends a hello from another port than the listen port, to test whether it arrives. The caller holds mu.
func (p *Peer) sendHelloFromSource(hello []byte) {
	if list, _ := p.dev.sources.unplanned(p.dev.spreadPorts()); len(list) > 0 {
		p.sendControl(p.controlKeys(), int(list[0]), hello)
	}
}

// announces reports whether this side tells the peer that it is a ropewalk, and takes its hellos. It needs no lock.
func (p *Peer) announces() bool {
	return p.dev.spreading.Load().mode != config.SpreadOff || p.quantum.policy() == config.PostQuantumRequired
}

// localHello returns the hello to send. The caller holds mu.
func (p *Peer) localHello() wire.Hello {
	h := wire.Hello{NoReply: true, PostQuantum: p.quantum.policy() != config.PostQuantumOff}
	if p.dev.spreading.Load().mode != config.SpreadOff {
		ports := p.dev.spreadPorts()
		h.Gathers, h.Probes, h.Heard, h.Plan = true, true, p.engine.Heard.Load(), p.hello.plan
		h.First, h.Last = ports.First, ports.Last
		if lanes, first := p.dev.selection.receiveLanes(p.dev.engine.Lanes()); lanes > 0 && p.announcesSpray() {
			h.Lanes, h.FirstLanePort = lanes, first
		}
	}
	if to, ref := p.engine.Endpoint.Load(), p.dev.port.Load(); to != nil && ref != nil {
		local := to.Src
		if !local.IsValid() { // routes have changed: use the address at which the peer's last hello arrived
			local = p.hello.localAddr
		}
		h.Own, h.Peer = netip.AddrPortFrom(local, ref.LocalPort()), to.Dst
	}
	return h
}

// announcesSpray reports whether the hello to send announces that this host puts sprayed flows in order. If so, the current session accepts them
// from now on. The caller holds mu.
func (p *Peer) announcesSpray() bool {
	keys := p.controlKeys()
	return p.dev.spreading.Load().spray != config.SprayOff && keys != nil && p.dev.engine.AnnounceStreams(keys)
}

// handleHello processes a received hello, nil for none. It answers if the peer requests that, or if the local hello has
// changed since it was last sent. The caller holds mu.
func (p *Peer) handleHello(m *pendingHello, now int64) {
	if p.path.roams.due.Load() {
		p.requests.hellos.putBack(m)
		p.answerWaitingHello(now)
		return
	}
	requested := false
	if m != nil {
		requested = p.receiveHello(m)
		p.quantum.offer(now)
	}
	if p.hello.ropewalk && (requested || p.localHelloChanged()) {
		p.sendHello(now)
	}
}

// answerWaitingHello answers the hello that waits for a round, at most once. The caller holds mu.
func (p *Peer) answerWaitingHello(now int64) {
	q := &p.requests.hellos
	m := q.last.Load()
	if m == nil || m.hello.NoReply || !p.hello.ropewalk {
		return
	}
	answered := *m
	answered.hello.NoReply = true
	if q.last.CompareAndSwap(m, &answered) { // else a newer one has its own task
		p.sendHello(now)
	}
}

// receiveHello stores a hello, and reports whether to answer it. The first hello of a session starts a round of queries.
// So does one from a peer that no longer hears us, because it was restarted. The caller holds mu.
func (p *Peer) receiveHello(m *pendingHello) (requested bool) {
	x := &p.hello
	if m.from.Dst.Addr() != p.path.proven { // the plans of both sides are for the path to another host, or another host's
		unplanned := *m // a lane may be reading m
		unplanned.hello.Plan, unplanned.planned = nil, false
		m = &unplanned
	}
	lost := x.receive(m.hello, p.findNAT(m))
	x.localAddr = m.from.Src
	p.quantum.machine.Load().SetOffers(x.offers())
	if m.planned {
		x.plan = m.plan
	}
	switch {
	case x.nat != nil: // no spread through a NAT, and other peers may share its address
		p.dev.selection.plan(p, netip.Addr{}, nil)
	case m.planned:
		p.dev.selection.plan(p, m.from.Dst.Addr(), m.plan) // before the peer learns the plan
	}
	p.updateGathered()
	p.setListenEndpoint(m)
	if m.source {
		p.engine.Heard.Store(true) // after its ports are stored: the peer begins to use them when it learns this
	}
	p.updateSpread()
	p.updatePathMTU(p.dev.clock())
	return lost || !m.hello.NoReply
}

// localHelloChanged reports whether the hello to send differs from the last one sent. The caller holds mu.
func (p *Peer) localHelloChanged() bool {
	h := p.localHello()
	return !bytes.Equal(p.hello.sent, wire.AppendHello(nil, &h))
}

// updateGathered sets the source ports from which the peer may send without roaming. The caller holds mu.
func (p *Peer) updateGathered() {
	x := &p.hello
	ports := x.remotePorts()
	p.engine.SendsHellos.Store(x.remote != noHello)
	if x.remote == noHello && p.dev.spreading.Load().mode == config.SpreadOn {
		ports = p.dev.spreadPorts() // both ends use the same range, as with `spread attach`
	}
	if ports.Len() == 0 || x.nat != nil {
		p.engine.Gathered.Store(nil)
		return
	}
	if old := p.engine.Gathered.Load(); old == nil || *old != ports {
		p.engine.Gathered.Store(&ports)
	}
}

// setListenEndpoint sets the endpoint to the peer's listen port: the sender of a hello from that port. It corrects an
// endpoint that was learnt from data which arrived from a source port before the hello. The caller holds mu.
func (p *Peer) setListenEndpoint(m *pendingHello) {
	to, port := p.engine.Endpoint.Load(), m.hello.Own.Port()
	switch {
	case to == nil || *to == m.from:
	case !m.fromSource():
		p.moveEndpoint(m.from)
	case p.hello.nat == nil && port != 0 && to.Dst.Port() != port && m.ports().Contains(to.Dst.Port()):
		p.engine.Endpoint.CompareAndSwap(to, &underlay.Endpoint{
			Dst: netip.AddrPortFrom(to.Dst.Addr(), port), Scope: to.Scope, Src: to.Src,
		})
	}
}
