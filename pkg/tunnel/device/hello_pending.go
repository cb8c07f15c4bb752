// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
)

// pendingHello is a received hello on its way from a lane to a worker. Once in a helloQueue it is
// not changed: a lane that has just loaded it may read it even after a worker took it.
type pendingHello struct {
	hello   wire.Hello
	from    underlay.Endpoint
	source  bool // it, or one from the same address that it replaced, came from a source port
	planned bool // plan is valid
	plan    []uint16
}

// helloQueue takes a peer's hellos from lanes. It keeps the last one only.
type helloQueue struct {
	last     atomic.Pointer[pendingHello] // nil when no hello waits for a worker
	rate     pace.Rate                    // of hellos
	planRate pace.Rate
}

// put stores m in place of the hello before it.
func (q *helloQueue) put(m *pendingHello) {
	for {
		old := q.last.Load()
		if q.last.CompareAndSwap(old, m.after(old)) {
			return
		}
	}
}

// putBack undoes taking m, which may be nil. A hello that has come meanwhile stays in its place.
func (q *helloQueue) putBack(m *pendingHello) {
	for m != nil {
		newer := q.last.Load()
		if q.last.CompareAndSwap(newer, newer.after(m)) {
			return
		}
	}
}

// after returns m together with what old, the hello before it, says of the same path. Either may be nil.
func (m *pendingHello) after(old *pendingHello) *pendingHello {
	if m == nil {
		return old
	}
	next := *m
	next.source = m.source || m.fromSource()
	if old == nil || old.from.Dst.Addr() != m.from.Dst.Addr() {
		return &next
	}
	next.source = next.source || old.source
	next.hello.NoReply = next.hello.NoReply && old.hello.NoReply // the one that requests an answer may arrive first
	if old.planned && old.from.Src == m.from.Src && old.from.Scope == m.from.Scope && old.ports() == m.ports() {
		next.plan, next.planned = old.plan, true
	}
	return &next
}

// discard drops the waiting hello: the session, the port or the peer that it speaks of is another one now.
func (q *helloQueue) discard() { q.last.Store(nil) }

// keepOnly drops a hello that has waited while the peer moved away from where it came from, and reports whether one waits now.
func (q *helloQueue) keepOnly(to *underlay.Endpoint) bool {
	m := q.last.Load()
	if m != nil && to != nil && !m.isFrom(to.Dst) && q.last.CompareAndSwap(m, nil) {
		m = nil
	}
	return m != nil
}

// Hello implements engine.SlowPath.
func (p *Peer) Hello(plain []byte, from underlay.Endpoint) drop.Reason {
	if wire.IsProbe(plain) {
		return p.receiveProbe(plain)
	}
	if !p.announces() || !p.requests.hellos.rate.Allow(p.dev.clock(), time.Second) {
		return drop.HelloUnwanted
	}
	m := &pendingHello{from: from}
	switch err := wire.ParseHello(plain, &m.hello); {
	case errors.Is(err, wire.ErrHelloVersion):
		return drop.HelloVersion
	case err != nil:
		return drop.HelloInvalid
	}
	p.requests.hellos.put(m)
	p.post(taskHello)
	return drop.None
}

// takePendingHello returns the waiting hello, nil for none. It adds a port plan for the sender once per session, and when
// the sender's ports change, at a limited rate. Planning queries the operating system, so the caller must not hold mu.
func (p *Peer) takePendingHello() *pendingHello {
	if p.path.roams.due.Load() {
		return nil
	}
	m := p.requests.hellos.last.Swap(nil)
	if m == nil || p.dev.cfg.Plan == nil || p.dev.spreading.Load().mode == config.SpreadOff {
		return m
	}
	p.mu.Lock()
	stale := !p.hello.state.received() || p.hello.remotePorts() != m.ports()
	p.mu.Unlock()
	ref := p.dev.port.Load()
	plannable := ref != nil && m.ports().Len() > 0 && m.from.Src.IsValid()
	if stale && plannable && p.requests.hellos.planRate.Allow(p.dev.clock(), time.Minute) {
		local, next := netip.AddrPortFrom(m.from.Src, ref.LocalPort()), *m
		next.plan, next.planned = p.dev.cfg.Plan(local, &m.from, p.dev.mark.Load(), m.ports()), true
		return &next
	}
	return m
}

// ports returns the source ports that the sender may use.
func (m *pendingHello) ports() spread.Ports {
	return spread.Ports{First: m.hello.First, Last: m.hello.Last}
}

// fromSource reports whether the hello came from one of these ports and not from the listen port.
func (m *pendingHello) fromSource() bool {
	return m.ports().Contains(m.from.Dst.Port()) && m.from.Dst.Port() != m.hello.Own.Port()
}

// isFrom reports whether the sender is at an endpoint, which may have one of its source ports.
func (m *pendingHello) isFrom(to netip.AddrPort) bool {
	return m.from.Dst == to || m.from.Dst.Addr() == to.Addr() && (m.fromSource() || m.ports().Contains(to.Port()))
}

// natError explains why there is no spread through a NAT. A NAT maps the listen ports only. It would drop messages from
// other ports, or send them from the port of another flow.
type natError struct{ behind, local, seen string }

// Error returns both views of the address.
func (e *natError) Error() string {
	return fmt.Sprintf("%s is behind a NAT: its address is %s locally, and %s at the other side", e.behind, e.local, e.seen)
}

// findNAT compares each side's local address with the address that the other side sees, as IKE does (RFC 7296, section
// 2.23). A spread source port says nothing about the listen port, so it counts as the listen port. That holds for the
// port that a hello came from, and for the port that the peer takes for our endpoint. The caller holds mu.
func (p *Peer) findNAT(m *pendingHello) error {
	seen := m.from.Dst
	if m.fromSource() {
		seen = netip.AddrPortFrom(seen.Addr(), m.hello.Own.Port())
	}
	if endpointsDiffer(m.hello.Own, seen) {
		return &natError{behind: "the peer", local: m.hello.Own.String(), seen: seen.String()}
	}
	ref := p.dev.port.Load()
	if ref == nil {
		return nil
	}
	local, seen := netip.AddrPortFrom(m.from.Src, ref.LocalPort()), m.hello.Peer
	if p.dev.spreadPorts().Contains(seen.Port()) {
		seen = netip.AddrPortFrom(seen.Addr(), local.Port())
	}
	if endpointsDiffer(local, seen) {
		return &natError{behind: "this host", local: local.String(), seen: seen.String()}
	}
	return nil
}

// endpointsDiffer reports whether two views of one endpoint contradict each other. An unknown address contradicts none.
func endpointsDiffer(a, b netip.AddrPort) bool {
	known := a.Addr().IsValid() && b.Addr().IsValid()
	return a.Port() != b.Port() || known && a.Addr().WithZone("") != b.Addr().WithZone("")
}
