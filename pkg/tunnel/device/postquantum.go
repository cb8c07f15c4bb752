// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pqexchange"
)

// maxExchanges is the number of exchanges that a device offers at a time.
const maxExchanges = 256

// quantum connects a peer with its pqexchange.Machine. A Machine exists from the first time the
// policy is on, or from recall. A nil Machine is valid and does nothing.
type quantum struct {
	peer    *Peer
	own     config.PostQuantum                 // the peer's policy; guarded by Peer.mu
	machine atomic.Pointer[pqexchange.Machine] // nil without one; written under Peer.mu
}

// turn returns the peer's part in Device.exchanges. The peer must have a Machine.
func (q *quantum) turn() *pace.Turn { return &q.machine.Load().Turn }

// policy returns the policy in effect. It needs no lock.
func (q *quantum) policy() config.PostQuantum { return q.machine.Load().Policy() }

// configured returns the policy without regard of spread: auto, off or required. The caller holds mu.
func (q *quantum) configured() config.PostQuantum {
	return q.own.Or(config.PostQuantum(q.peer.dev.postQuantum.Load())).Or(config.DefaultPostQuantum)
}

// takeParts returns the parts that have arrived. A part proves that the peer uses the next session,
// so takeParts confirms that session first, in case its lane has not yet. The caller holds mu, and
// calls sessions.handleConfirmed.
func (q *quantum) takeParts() []pqexchange.Part {
	list := q.machine.Load().Take()
	for _, m := range list {
		if b := q.peer.sessions.next; b != nil && b.keys == m.Keys {
			q.peer.sessions.confirm(m.Keys)
		}
	}
	return list
}

// runTask handles parts, and begins an exchange whose turn has come. The caller holds mu.
func (q *quantum) runTask(parts []pqexchange.Part, now int64) {
	m := q.machine.Load()
	for i := range parts {
		if b := q.peer.sessions.of(parts[i].Keys); b != nil && m != nil {
			q.act(m.Receive(&b.exchange, &parts[i], now), now)
		}
	}
	q.upgrade(now)
	q.offer(now)
}

// upgrade starts the handshake with a new key when it is due. The caller holds mu.
func (q *quantum) upgrade(now int64) {
	a := q.machine.Load().Upgrade(q.peer.sessions.inUse(), now)
	q.act(a, now)
	if a.Upgrade {
		q.peer.handshake.startRenewal(now, q.policy() != config.PostQuantumRequired)
	}
}

// request posts the task that begins an exchange, if one is due. The caller holds mu.
func (q *quantum) request() {
	if q.machine.Load().Wanted() {
		q.peer.postExchange()
	}
}

// leaveTurn gives the peer's turn to others. The caller holds mu.
func (q *quantum) leaveTurn() {
	if m := q.machine.Load(); m != nil {
		q.peer.dev.exchanges.Leave(q.peer)
	}
}

// runTimers does what is due. The caller holds mu.
func (q *quantum) runTimers(now int64) {
	q.act(q.machine.Load().Fire(q.peer.sessions.inUse(), now), now)
	q.upgrade(now)
}

// act does what the Machine asks for. The caller holds mu.
func (q *quantum) act(a pqexchange.Actions, now int64) {
	p := q.peer
	if a.Result != 0 {
		p.dev.counts.quantum.results[a.Result].Add(1)
		p.log().Debug("post-quantum exchange", "peer", p.key, "result", a.Result.String())
	}
	if a.Send != 0 {
		q.send(a, now)
	}
	if a.LeaveTurn {
		q.leaveTurn()
	}
	if a.Expire {
		p.staged.drop()
	}
	if a.Downgrade {
		q.warnDowngraded(now)
	}
}

// send sends a message under the key pair of its session. The caller holds mu.
func (q *quantum) send(a pqexchange.Actions, now int64) {
	p := q.peer
	for _, b := range p.sessions.all() {
		if b == nil || &b.exchange != a.Session || !b.keys.Usable(now) {
			continue
		}
		var messages [wire.KEMParts]engine.ControlMessage
		for i := range messages {
			messages[i].Plain = wire.AppendKEMPart(nil, a.Send, a.Message, i)
		}
		p.dev.engine.SendControl(p.engine, b.keys, messages[:]...)
	}
}

// warnDowngraded warns of a peer that had post-quantum sessions, and has others for long. The caller
// holds mu.
func (q *quantum) warnDowngraded(now int64) {
	p := q.peer
	p.dev.counts.quantum.downgrades.Add(1)
	level := p.dev.failuresLog.Level(now, slog.LevelWarn)
	p.log().Log(context.Background(), level, "sessions with the peer are not post-quantum any more, sending data all the same (PostQuantum = required forbids it)",
		"peer", p.key, "reason", q.report(now).Reason, "last_post_quantum", q.machine.Load().Had())
}

// offer begins an exchange if one is due, and it is the peer's turn. The caller holds mu.
func (q *quantum) offer(now int64) {
	enter := func() bool { return q.peer.dev.exchanges.Enter(q.peer) }
	a, err := q.machine.Load().Offer(q.peer.dev.cfg.Rand, enter, now)
	if err != nil {
		q.peer.log().Error("beginning a post-quantum exchange failed, trying again with the next session", "peer", q.peer.key, "error", err)
	}
	q.act(a, now)
}

// begin is called after the current session has changed. The caller holds mu.
func (q *quantum) begin() {
	now := q.peer.dev.clock()
	q.act(q.machine.Load().Begin(q.peer.sessions.inUse(), now, q.peer.dev.cfg.Wall()), now)
}

// end is called after all sessions were erased. The caller holds mu.
func (q *quantum) end() {
	if m := q.machine.Load(); m != nil {
		m.End()
		q.leaveTurn()
	}
}

// report describes the session in use. The caller holds mu.
func (q *quantum) report(now int64) config.PeerPostQuantum {
	r := q.machine.Load().Report(q.configured(), q.peer.sessions.inUse(), q.peer.hello.exchange.Unknown, now)
	r.Own = q.own != config.PostQuantumDefault
	return r
}

// updatePolicy follows a change of the policy, or of the mode of spread. While spread is off, there
// are no hellos to agree on an exchange, unless it is required. The caller holds Device.mu and mu.
func (q *quantum) updatePolicy() {
	p, configured, old := q.peer, q.configured(), q.policy()
	next := configured
	if next == config.PostQuantumAuto && p.dev.spreading.Load().mode == config.SpreadOff {
		next = config.PostQuantumOff
	}
	if next != old {
		p.noteChange()
		q.setPolicy(next)
	}
	if configured == config.PostQuantumOff { // the past is forgotten
		q.machine.Store(nil)
	}
	if next == old || !p.running {
		return
	}
	now := p.dev.clock()
	if next == config.PostQuantumRequired || old == config.PostQuantumRequired {
		p.sessions.endBase(now)
	}
	p.hello.handle(nil, now)
	p.armTimer(now)
}

// setPolicy changes the policy in effect. The caller holds mu.
func (q *quantum) setPolicy(next config.PostQuantum) {
	p := q.peer
	m := q.created()
	if next == config.PostQuantumOff {
		q.leaveTurn()
		for _, b := range p.sessions.all() {
			if b != nil {
				b.exchange.Wipe()
			}
		}
	}
	m.SetPolicy(next)
}

// created returns the Machine, which it makes if there is none. The caller holds mu.
func (q *quantum) created() *pqexchange.Machine {
	p := q.peer
	if m := q.machine.Load(); m != nil {
		return m
	}
	var local noise.PublicKey
	if id := p.dev.identity.Load(); id != nil {
		local = id.Public()
	}
	m := pqexchange.New(local, p.key)
	if p.sessions.current != nil {
		m.Begin(p.sessions.inUse(), p.dev.clock(), p.dev.cfg.Wall())
	}
	m.SetOffers(p.hello.exchange.Offers())
	q.machine.Store(m)
	return m
}

// recall is called if sessions had keys in a process before this one, until had. The time is ignored
// if the policy is off, and kept while auto is inactive. The caller holds mu.
func (q *quantum) recall(had time.Time) {
	if !had.IsZero() && q.configured() != config.PostQuantumOff {
		q.created().Recall(had)
	}
}

// save returns the result of exchanges, nil for none. The caller holds mu.
func (q *quantum) save() *ExchangeState {
	m := q.machine.Load()
	entries := m.Keys()
	if len(entries) == 0 && m.Had().IsZero() {
		return nil
	}
	s := &ExchangeState{Had: m.Had()}
	for _, e := range entries {
		s.Keys = append(s.Keys, ExchangeKey{Key: Secret(e.Key), ID: e.ID, At: e.At, Certain: e.Certain, Used: e.Used, Ends: e.Ends})
	}
	clear(entries)
	return s
}

// restore is the inverse of save. The caller holds mu.
func (q *quantum) restore(s *ExchangeState) {
	if s == nil {
		s = &ExchangeState{}
	}
	entries := s.entries()
	q.recall(s.Had)
	q.machine.Load().Restore(entries, s.Had)
	clear(entries)
}
