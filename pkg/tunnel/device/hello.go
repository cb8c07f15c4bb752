// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/hello"
)

// hellos are the hellos to and from a peer.
type hellos struct {
	peer     *Peer
	queue    hello.Queue    // from lanes
	exchange hello.Exchange // guarded by Peer.mu
}

// accept takes a hello from a lane. It needs no lock.
func (h *hellos) accept(plain []byte, from underlay.Endpoint) drop.Reason {
	if !h.announced() || !h.queue.Allow(h.peer.dev.clock()) {
		return drop.HelloUnwanted
	}
	m := &hello.Pending{From: from}
	switch err := wire.ParseHello(plain, &m.Hello); {
	case errors.Is(err, wire.ErrHelloVersion):
		return drop.HelloVersion
	case err != nil:
		return drop.HelloInvalid
	}
	h.queue.Put(m)
	h.peer.post(taskHello)
	return drop.None
}

// take returns the waiting hello, nil for none. It adds a port plan for the sender once per session, and when
// the sender's ports change, at a limited rate. Planning queries the operating system, so the caller must not hold mu.
func (h *hellos) take() *hello.Pending {
	p := h.peer
	if p.location.roams.Due() {
		return nil
	}
	m := h.queue.Take()
	if m == nil || p.dev.cfg.Plan == nil || p.dev.spreading.Load().mode == config.SpreadOff {
		return m
	}
	p.mu.Lock()
	stale := !h.exchange.Received() || h.exchange.Ports() != m.Ports()
	p.mu.Unlock()
	listen := p.dev.outer.localPort()
	if !stale || listen == 0 || m.Ports().Len() == 0 || !m.From.Src.IsValid() || !h.queue.AllowPlan(p.dev.clock()) {
		return m
	}
	return m.WithPlan(p.dev.cfg.Plan(netip.AddrPortFrom(m.From.Src, listen), &m.From, p.dev.mark.Load(), m.Ports()))
}

// reset discards all knowledge of the peer; reason says why there is none. The caller holds mu.
func (h *hellos) reset(reason error) {
	p := h.peer
	h.exchange.Reset(reason)
	p.quantum.machine.Load().SetOffers(h.exchange.Offers())
	p.dev.outer.selection.Plan(p, netip.Addr{}, nil)
	p.engine.Heard.Store(false)
	h.updateGathered()
	p.spread.update()
	p.mtu.stop()
}

// renew discards what the peer confirmed about the path to it and, if either side has moved, what is known about the
// path from it. Then it queries the peer again, if there is a session. The caller holds mu.
func (h *hellos) renew(moved bool) {
	p := h.peer
	h.discard(moved)
	if moved {
		p.mtu.forget()
		p.probing.leavePath()
		p.mtu.apply()
		h.queue.Discard()
		p.requestRoute()
	}
	h.queryAgain()
}

// queryAgain queries the peer after discard, if there is a session. The caller holds mu.
func (h *hellos) queryAgain() {
	p := h.peer
	if p.running && h.exchange.Ropewalk && p.sessions.controlKeys() != nil {
		h.query(p.dev.clock())
		p.armTimer(p.dev.clock())
	}
}

// discard is renew without queries. The caller holds mu.
func (h *hellos) discard(moved bool) {
	p := h.peer
	p.noteChange()
	if moved {
		p.dev.outer.selection.Plan(p, netip.Addr{}, nil)
		p.engine.Heard.Store(false)
	}
	h.exchange.Discard(moved, p.sessions.controlKeys() != nil, p.sessions.next != nil)
	h.updateGathered()
	p.spread.update()
}

// sessionConfirmed starts the exchange: the peer uses the session that it initiated with a signed initiation. The
// caller holds mu.
func (h *hellos) sessionConfirmed(now int64) {
	h.exchange.Confirm()
	h.query(now)
}

// sessionInitiated waits for the peer's hello: our handshake is complete. The caller holds mu.
func (h *hellos) sessionInitiated(now int64) {
	h.exchange.Await(now)
	h.peer.spread.update()
}

// query starts a round of queries. The caller holds mu.
func (h *hellos) query(now int64) {
	if !h.announced() {
		return
	}
	if h.exchange.Query() {
		h.peer.spread.update()
	}
	h.send(now)
}

// next returns when runTimer is due, 0 for never. The caller holds mu.
func (h *hellos) next() int64 {
	if h.peer.location.roams.Due() {
		return 0
	}
	return h.exchange.Next()
}

// runTimer does what is due. The caller holds mu.
func (h *hellos) runTimer(now int64) {
	p := h.peer
	if p.location.roams.Due() {
		return
	}
	b := p.sessions.current
	silent := b != nil && b.keys.Initiator() && !b.keys.Received()
	switch h.exchange.Fire(now, silent) {
	case hello.Send:
		h.send(now)
	case hello.Blocked:
		p.spread.update()
	case hello.Extend:
		p.spread.logUp(true)
		h.exchange.Extend(now, b.keys.Created())
	case hello.Stock:
		h.reset(hello.ErrNoHello)
	case hello.Nothing:
	}
}

// send sends a hello now, or schedules it hello.Pause after the last one. The caller holds mu.
func (h *hellos) send(now int64) {
	p, x := h.peer, &h.exchange
	if x.Delay(now) {
		return
	}
	keys := p.sessions.controlKeys()
	if !keys.Usable(now) {
		x.Expire()
		return
	}
	local := h.local()
	plain, query := x.Sent(&local, now)
	if !x.Remote.Heard && x.NAT == nil && p.dev.spreading.Load().mode != config.SpreadOff {
		h.sendFromSource(plain)
	}
	local.NoReply = !query
	p.sendControl(keys, 0, wire.AppendHello(nil, &local))
}

// sendFromSource sends a hello from another port than the listen port, to test whether it arrives. The caller holds mu.
func (h *hellos) sendFromSource(plain []byte) {
	if list, _ := h.peer.dev.outer.sources.Unplanned(h.peer.dev.outer.spreadPorts()); len(list) > 0 {
		h.peer.sendControl(h.peer.sessions.controlKeys(), int(list[0]), plain)
	}
}

// announced reports whether this side tells the peer that it is a ropewalk, and takes its hellos. It needs no lock.
func (h *hellos) announced() bool {
	return h.peer.dev.spreading.Load().mode != config.SpreadOff || h.peer.quantum.policy() == config.PostQuantumRequired
}

// local returns the hello to send. The caller holds mu.
func (h *hellos) local() wire.Hello {
	p := h.peer
	m := wire.Hello{NoReply: true, PostQuantum: p.quantum.policy() != config.PostQuantumOff}
	if p.dev.spreading.Load().mode != config.SpreadOff {
		ports := p.dev.outer.spreadPorts()
		m.Gathers, m.Probes, m.Heard, m.Plan = true, true, p.engine.Heard.Load(), h.exchange.Plan
		m.First, m.Last = ports.First, ports.Last
		if lanes, first := p.dev.outer.selection.ReceiveLanes(p.dev.engine.Lanes()); lanes > 0 && h.announcesSpray() {
			m.Lanes, m.FirstLanePort = lanes, first
		}
	}
	if to, listen := p.engine.Endpoint.Load(), p.dev.outer.port.Load(); to != nil && listen != nil {
		local := to.Src
		if !local.IsValid() { // routes have changed: use the address at which the peer's last hello arrived
			local = h.exchange.LocalAddr
		}
		m.Own, m.Peer = netip.AddrPortFrom(local, listen.LocalPort()), to.Dst
	}
	return m
}

// announcesSpray reports whether the hello to send announces that this host puts sprayed flows in order. If so, the current session accepts them
// from now on. The caller holds mu.
func (h *hellos) announcesSpray() bool {
	p := h.peer
	keys := p.sessions.controlKeys()
	return p.dev.spreading.Load().spray != config.SprayOff && keys != nil && p.dev.engine.AnnounceStreams(keys)
}

// handle processes a received hello, nil for none. It answers if the peer requests that, or if the local hello has
// changed since it was last sent. The caller holds mu.
func (h *hellos) handle(m *hello.Pending, now int64) {
	if h.peer.location.roams.Due() { // at most one answer for each hello that waits for a round
		h.queue.PutBack(m)
		if h.exchange.Ropewalk && h.queue.Answer() {
			h.send(now)
		}
		return
	}
	requested := false
	if m != nil {
		requested = h.receive(m)
		h.peer.quantum.request()
	}
	if !h.exchange.Ropewalk {
		return
	}
	if local := h.local(); requested || h.exchange.Differs(&local) {
		h.send(now)
	}
}

// receive stores a hello, and reports whether to answer it. The first hello of a session starts a
// round of queries. A hello from a peer that no longer hears us also starts one: the peer was
// restarted. The caller holds mu.
func (h *hellos) receive(m *hello.Pending) (requested bool) {
	p, x := h.peer, &h.exchange
	if m.From.Dst.Addr() != p.location.proven { // the plans of both sides are for the path to another host, or another host's
		m = m.Unplanned()
	}
	lost := x.Receive(m.Hello, hello.FindNAT(m, p.dev.outer.localPort(), p.dev.outer.spreadPorts()))
	x.LocalAddr = m.From.Src
	p.quantum.machine.Load().SetOffers(x.Offers())
	if m.Planned {
		x.Plan = m.Plan
	}
	switch {
	case x.NAT != nil: // no spread through a NAT, and other peers may share its address
		p.dev.outer.selection.Plan(p, netip.Addr{}, nil)
	case m.Planned:
		p.dev.outer.selection.Plan(p, m.From.Dst.Addr(), m.Plan) // before the peer learns the plan
	}
	h.updateGathered()
	h.setListenEndpoint(m)
	if m.Source {
		p.engine.Heard.Store(true) // after its ports are stored: the peer begins to use them when it learns this
	}
	p.spread.update()
	p.mtu.update(p.dev.clock())
	return lost || !m.Hello.NoReply
}

// updateGathered sets the source ports from which the peer may send without roaming. The caller holds mu.
func (h *hellos) updateGathered() {
	p, x := h.peer, &h.exchange
	ports := x.Ports()
	p.engine.SendsHellos.Store(x.Remote != hello.None)
	if x.Remote == hello.None && p.dev.spreading.Load().mode == config.SpreadOn {
		ports = p.dev.outer.spreadPorts() // both ends use the same range, as with `spread attach`
	}
	if ports.Len() == 0 || x.NAT != nil {
		p.engine.Gathered.Store(nil)
		return
	}
	if old := p.engine.Gathered.Load(); old == nil || *old != ports {
		p.engine.Gathered.Store(&ports)
	}
}

// setListenEndpoint sets the endpoint to the peer's listen port: the sender of a hello from that port. It corrects an
// endpoint that was learnt from data which arrived from a source port before the hello. The caller holds mu.
func (h *hellos) setListenEndpoint(m *hello.Pending) {
	p := h.peer
	to, port := p.engine.Endpoint.Load(), m.Hello.Own.Port()
	switch {
	case to == nil || *to == m.From:
	case !m.FromSource():
		p.location.move(m.From)
	case h.exchange.NAT == nil && port != 0 && to.Dst.Port() != port && m.Ports().Contains(to.Dst.Port()):
		p.engine.Endpoint.CompareAndSwap(to, &underlay.Endpoint{
			Dst: netip.AddrPortFrom(to.Dst.Addr(), port), Scope: to.Scope, Src: to.Src,
		})
	}
}

// save returns the result of the exchange, nil if there is no session and none that is being renewed. The caller holds mu.
func (h *hellos) save() *HelloResult {
	p, x := h.peer, &h.exchange
	if !p.sessions.has() && !p.dev.renewals.Concerns(p) {
		return nil
	}
	s := &HelloResult{Ropewalk: x.Ropewalk, LocalAddr: x.LocalAddr, Heard: p.engine.Heard.Load(), Plan: x.Plan, Blocked: p.spread.report.Blocked}
	if x.Remote != hello.None && x.NAT == nil {
		s.Hello = wire.AppendHello(nil, x.Remote)
	}
	return s
}

// restore is the inverse of save. The caller holds mu.
func (h *hellos) restore(s *HelloResult) {
	p, x := h.peer, &h.exchange
	if m := new(wire.Hello); len(s.Hello) > 0 && wire.ParseHello(s.Hello, m) == nil {
		x.Remote = m
		p.quantum.machine.Load().SetOffers(x.Offers())
	}
	x.Ropewalk, x.LocalAddr, x.Plan = s.Ropewalk, s.LocalAddr, s.Plan
	if to := p.engine.Endpoint.Load(); to != nil && len(s.Plan) > 0 {
		p.location.proven = to.Dst.Addr()
		p.dev.outer.selection.Plan(p, to.Dst.Addr(), s.Plan)
	}
	h.updateGathered()
	p.engine.Heard.Store(s.Heard)
	p.spread.update()
	p.probing.resumeBlocked(s.Blocked)
}
