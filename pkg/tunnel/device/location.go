// SPDX-License-Identifier: Apache-2.0

package device

import (
	"container/list"
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/endpoint"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
)

// location is the knowledge of the endpoint of a peer. The endpoint itself is in engine.Peer, since
// lanes read it. Peer.mu guards all fields but replaced, roamLog and settles.
type location struct {
	peer     *Peer
	guarded  config.Endpoint // the peer's endpoint as guard and Device.inbound.gate know it; the zero Endpoint for none
	guard    *guardRef       // the guard that knows it
	proven   netip.Addr      // where the peer received a handshake message, while its endpoint is there: nobody else's address
	name     *endpoint.Name  // from which it was resolved, nil for none
	replaced endpoint.Replaced
	roamLog  pace.Rate
	roams    endpoint.Rounds
	loop     underlay.Destination // that the port refuses
	looked   loopLookup           // the last one before a handshake message that counts; the zero loopLookup for none
	settles  atomic.Int64         // until then the endpoint may change without a message in the log
}

// configure sets the peer's endpoint as configured, and reports whether its address or port is another one.
func (l *location) configure(to *underlay.Endpoint) (moved bool) {
	p := l.peer
	old := p.engine.Endpoint.Load()
	if moved = old != nil && old.Dst != to.Dst; moved {
		l.replaced.Hold(old.Dst.Addr(), p.dev.clock())
	}
	p.engine.Endpoint.Store(to)
	p.noteChange()
	if moved {
		p.requestRoute()
	}
	return moved
}

// move sets the peer's endpoint to the source of an authenticated message. It needs no lock.
func (l *location) move(to underlay.Endpoint) {
	p := l.peer
	old, ok := l.swap(&to)
	if !ok {
		return
	}
	if old == nil || old.Dst != to.Dst {
		level := slog.LevelInfo
		if old == nil || l.settling() || !l.roamLog.Allow(p.dev.clock(), time.Minute) { // the first endpoint, or too many changes
			level = slog.LevelDebug
		}
		p.log().Log(context.Background(), level, "peer roamed", "peer", p.key, "endpoint", to.Dst)
	}
	if old != nil && old.Dst != to.Dst {
		p.post(taskRoamed)
		p.noteSession()
	}
	if old != nil && old.Src != to.Src {
		p.requestRoute()
	}
}

// settling reports whether the tunnel has just come up or is not up yet. Then messages from several
// ports or addresses of the peer may move the endpoint there and back. The line "tunnel to peer up"
// has the final endpoint. It needs no lock.
func (l *location) settling() bool {
	p := l.peer
	return p.engine.Current.Load() == nil || p.dev.clock() < l.settles.Load()
}

// followRoam learns anew what depends on the endpoint: a hello, the route, the path MTU. The route may lead into the tunnel, so its lookup does not
// wait for a round: lookUpRoute has a pace of its own. The caller holds mu.
func (l *location) followRoam(now int64) {
	p := l.peer
	if to := p.engine.Endpoint.Load(); to == nil || to.Dst.Addr() != l.proven {
		l.proven = netip.Addr{}
	}
	p.hello.discard(true)
	p.mtu.forgetReports()
	p.requestRoute()
	l.beginRoamRound(now)
}

// followDeferredRoam is the part of followRoam that was due later. The caller holds mu.
func (l *location) followDeferredRoam(now int64) {
	if l.roams.Due() {
		l.beginRoamRound(now)
	}
}

// beginRoamRound begins a round of hellos and lookups, or leaves it for later. A hello that came in a pause is handled now, and the peer has the
// whole time to send one. The caller holds mu.
func (l *location) beginRoamRound(now int64) {
	p := l.peer
	if !l.roams.Begin(now) {
		return
	}
	p.mtu.forget()
	p.probing.leavePath()
	p.mtu.update(now) // the limit of the last search holds
	p.hello.exchange.Postpone(now)
	if p.hello.queue.KeepOnly(p.engine.Endpoint.Load()) {
		p.post(taskHello)
	}
	p.requestRoute()
	p.hello.queryAgain()
}

// swap sets the peer's endpoint, unless the configuration has just replaced it, even if that happens while
// swap runs.
func (l *location) swap(to *underlay.Endpoint) (old *underlay.Endpoint, ok bool) {
	p := l.peer
	for {
		old = p.engine.Endpoint.Load()
		if (old == nil || old.Dst != to.Dst) && l.replaced.Has(to.Dst.Addr(), p.dev.clock()) {
			return old, false
		}
		if p.engine.Endpoint.CompareAndSwap(old, to) {
			p.noteChange()
			return old, true
		}
	}
}

// updateGuard replaces the peer's endpoint in the guard, and among the known endpoints, by the present one. The caller holds mu.
func (l *location) updateGuard() {
	var at config.Endpoint
	if to := l.peer.engine.Endpoint.Load(); to != nil {
		at = config.Endpoint{AddrPort: to.Dst, Scope: to.Scope}
	}
	l.setGuarded(at)
}

// setGuarded replaces the peer's endpoint in the guard and among the known endpoints; the zero Endpoint is none. The caller holds mu.
func (l *location) setGuarded(at config.Endpoint) {
	p := l.peer
	old, g := l.guarded, p.dev.outer.guard.Load()
	known := l.guard == g // g knows old
	l.guarded, l.guard = at, g
	if at != old {
		p.dev.inbound.gate.Endpoints.Replace(old.AddrPort, at.AddrPort)
		if s, ok := p.dev.outer.switcher(); ok && at.AddrPort.IsValid() {
			s.EndpointAdded(at)
		}
	}
	if g == nil || known && at == old {
		return
	}
	if at.AddrPort.IsValid() {
		g.AddSource(at)
	}
	if known && old.AddrPort.IsValid() {
		g.RemoveSource(old)
	}
}

// recall gives a new peer what Config.Recall knows: the endpoint, unless one is configured, and whether sessions had post-quantum keys. start then renews
// the session that the process before had. The caller holds Device.mu.
func (l *location) recall() {
	p := l.peer
	id := p.dev.identity.Load()
	if p.dev.cfg.Recall == nil || id == nil {
		return
	}
	last, ok := p.dev.cfg.Recall(id.Public(), p.key)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quantum.recall(last.PostQuantum)
	if !last.Endpoint.IsValid() {
		return
	}
	p.handover.lostAt = p.dev.clock()
	if p.engine.Endpoint.Load() == nil {
		l.configure(&underlay.Endpoint{Dst: last.Endpoint})
	}
}

func (l *location) moveScope(from, to uint32) {
	p := l.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	l.name.MoveScope(from, to)
	before := p.engine.Endpoint.Load()
	if before == nil || before.Scope != from || !p.engine.Endpoint.CompareAndSwap(before, &underlay.Endpoint{Dst: before.Dst, Scope: to}) {
		return // the peer has just moved
	}
	p.noteChange()
	p.requestRoute()
	if p.running {
		l.updateGuard()
	}
}

// clearSource lets routing choose the source address again: the present one may be why the peer does not answer. It needs no lock.
func (l *location) clearSource() {
	p := l.peer
	if to := p.engine.Endpoint.Load(); to != nil && to.Src.IsValid() {
		p.engine.Endpoint.CompareAndSwap(to, &underlay.Endpoint{Dst: to.Dst, Scope: to.Scope})
		p.noteChange()
	}
}

// Resolved is the result of a lookup of an endpoint's name.
type Resolved = endpoint.Resolved

const (
	lookupTimeout = 10 * time.Second
	// maxLookups is the maximum number of concurrent lookups. Each takes at least lookupInterval: a thousand peers may fail at once.
	maxLookups     = 8
	lookupInterval = 100 * time.Millisecond
)

// lookups are the lookups of endpoints' names, in the order in which they were requested. Goroutines exist only while lookups wait or run.
// The lock comes after Peer.mu.
type lookups struct {
	dev     *Device
	mu      sync.Mutex
	waiting list.List // of lookup
	running int       // goroutines
}

// lookup is one lookup. Each peer has one at most (endpoint.Name.Request).
type lookup struct {
	peer *Peer
	name string
	mark uint32
}

// lookUpName looks the endpoint's name up again if its addresses are old, or sooner if handshakes fail. The caller holds mu.
func (l *location) lookUpName(now int64) {
	p, failing, mark := l.peer, l.peer.handshake.fails(), uint32(0)
	if p.dev.cfg.Resolve == nil || !l.name.Request(now, failing) {
		return
	}
	if failing { // the mark keeps the query out of this tunnel, which may be the default route
		mark = p.dev.mark.Load()
	}
	p.dev.lookups.request(lookup{p, l.name.String(), mark})
}

// request appends a lookup, and starts a goroutine for it unless maxLookups of them run.
func (q *lookups) request(l lookup) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting.PushBack(l)
	if q.running < maxLookups {
		q.running++
		q.dev.workers.Go(q.run)
	}
}

// next removes the first lookup. Without one, the calling goroutine ends.
func (q *lookups) next() (lookup, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := q.waiting.Front()
	if first == nil {
		q.running--
		return lookup{}, false
	}
	return q.waiting.Remove(first).(lookup), true
}

// run makes one lookup per lookupInterval, until none waits.
func (q *lookups) run() {
	for l, ok := q.next(); ok; l, ok = q.next() {
		pause := time.NewTimer(lookupInterval)
		l.peer.location.resolve(l.name, l.mark)
		select {
		case <-pause.C:
		case <-q.dev.stop:
			pause.Stop()
			return
		}
	}
}

// resolve looks the name up, unless the endpoint has another one or the peer was removed meanwhile.
func (l *location) resolve(name string, mark uint32) {
	p := l.peer
	d := p.dev
	p.mu.Lock()
	unused := !p.running || l.name.String() != name
	if unused {
		l.name.Cancel()
	}
	p.mu.Unlock()
	if unused {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	go func() {
		select {
		case <-d.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	r, err := d.cfg.Resolve(ctx, name, mark)
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.name.String() == name {
		l.noteLookup(r, err, d.clock())
	}
}

// noteLookup applies the result of a lookup. The caller holds mu.
func (l *location) noteLookup(r Resolved, err error, now int64) {
	p := l.peer
	if err != nil || len(r.Endpoints) == 0 {
		l.name.Fail(now)
		level := p.dev.failuresLog.Level(now, slog.LevelWarn)
		p.log().Log(context.Background(), level, "resolving the endpoint name failed, keeping the present address: a later handshake retries",
			"peer", p.key, "endpoint_name", l.name.String(), "error", err)
		return
	}
	if to, move := l.name.Note(r, p.engine.Endpoint.Load(), p.handshake.fails(), now); move {
		l.moveToResolved(to, now)
	}
}

// moveToResolved sets another address of the endpoint's name, and starts a handshake there. The caller holds mu.
func (l *location) moveToResolved(to config.Endpoint, now int64) {
	p := l.peer
	p.log().Info("endpoint resolved to another address", "peer", p.key, "endpoint_name", l.name.String(), "endpoint", to.AddrPort)
	l.configure(&underlay.Endpoint{Dst: to.AddrPort, Scope: to.Scope})
	if !p.running {
		return
	}
	p.hello.renew(true)
	l.updateGuard()
	p.handshake.sendInitiation(now)
	p.armTimer(now)
}
