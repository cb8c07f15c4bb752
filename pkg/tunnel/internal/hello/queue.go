// SPDX-License-Identifier: Apache-2.0

package hello

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
)

// Pending is a received hello on its way from a lane to a worker. Once in a Queue it is
// not changed: a lane that has just loaded it may read it even after a worker took it.
type Pending struct {
	Hello   wire.Hello
	From    underlay.Endpoint
	Source  bool // it, or one from the same address that it replaced, came from a source port
	Planned bool // Plan is valid
	Plan    []uint16
}

// Queue takes a peer's hellos from lanes. It keeps the last one only.
type Queue struct {
	last     atomic.Pointer[Pending] // nil when no hello waits for a worker
	rate     pace.Rate               // of hellos
	planRate pace.Rate
}

// Put stores m in place of the hello before it.
func (q *Queue) Put(m *Pending) {
	for {
		old := q.last.Load()
		if q.last.CompareAndSwap(old, m.after(old)) {
			return
		}
	}
}

// PutBack undoes taking m, which may be nil. A hello that has come meanwhile stays in its place.
func (q *Queue) PutBack(m *Pending) {
	for m != nil {
		newer := q.last.Load()
		if q.last.CompareAndSwap(newer, newer.after(m)) {
			return
		}
	}
}

// after returns m with the knowledge of old, the hello before it, about the same path. Either may
// be nil.
func (m *Pending) after(old *Pending) *Pending {
	if m == nil {
		return old
	}
	next := *m
	next.Source = m.Source || m.FromSource()
	if old == nil || old.From.Dst.Addr() != m.From.Dst.Addr() {
		return &next
	}
	next.Source = next.Source || old.Source
	next.Hello.NoReply = next.Hello.NoReply && old.Hello.NoReply // the hello that requests an answer may arrive first
	if old.Planned && old.From.Src == m.From.Src && old.From.Scope == m.From.Scope && old.Ports() == m.Ports() {
		next.Plan, next.Planned = old.Plan, true
	}
	return &next
}

// Discard drops the waiting hello: the session, the port or the peer that it speaks of is another one now.
func (q *Queue) Discard() { q.last.Store(nil) }

// KeepOnly drops a hello that has waited while the peer moved away from where it came from, and reports whether one waits now.
func (q *Queue) KeepOnly(to *underlay.Endpoint) bool {
	m := q.last.Load()
	if m != nil && to != nil && !m.isFrom(to.Dst) && q.last.CompareAndSwap(m, nil) {
		m = nil
	}
	return m != nil
}

// Take removes the waiting hello, nil for none.
func (q *Queue) Take() *Pending { return q.last.Swap(nil) }

// Allow reports whether the peer may send another hello.
func (q *Queue) Allow(now int64) bool { return q.rate.Allow(now, time.Second) }

// AllowPlan reports whether another port plan may be made for the peer.
func (q *Queue) AllowPlan(now int64) bool { return q.planRate.Allow(now, time.Minute) }

// Answer reports whether the waiting hello requests an answer that it has not got. It then counts as
// answered.
func (q *Queue) Answer() bool {
	m := q.last.Load()
	if m == nil || m.Hello.NoReply {
		return false
	}
	answered := *m
	answered.Hello.NoReply = true
	return q.last.CompareAndSwap(m, &answered) // else a newer one has its own task
}

// WithPlan returns m with a port plan for the sender.
func (m *Pending) WithPlan(plan []uint16) *Pending {
	next := *m // a lane may be reading m
	next.Plan, next.Planned = plan, true
	return &next
}

// Unplanned returns m without the plans of both sides.
func (m *Pending) Unplanned() *Pending {
	next := *m // a lane may be reading m
	next.Hello.Plan, next.Planned = nil, false
	return &next
}

// Ports returns the source ports that the sender may use.
func (m *Pending) Ports() spread.Ports {
	return spread.Ports{First: m.Hello.First, Last: m.Hello.Last}
}

// FromSource reports whether the hello came from one of these ports and not from the listen port.
func (m *Pending) FromSource() bool {
	return m.Ports().Contains(m.From.Dst.Port()) && m.From.Dst.Port() != m.Hello.Own.Port()
}

// isFrom reports whether the sender is at an endpoint, which may have one of its source ports.
func (m *Pending) isFrom(to netip.AddrPort) bool {
	return m.From.Dst == to || m.From.Dst.Addr() == to.Addr() && (m.FromSource() || m.Ports().Contains(to.Port()))
}

// natError explains why there is no spread through a NAT. A NAT maps the listen ports only. It would drop messages from
// other ports, or send them from the port of another flow.
type natError struct{ behind, local, seen string }

// Error returns both views of the address.
func (e *natError) Error() string {
	return fmt.Sprintf("%s is behind a NAT: its address is %s locally, and %s at the other side", e.behind, e.local, e.seen)
}

// FindNAT compares each side's local address with the address that the other side sees, as IKE does (RFC 7296, section
// 2.23). A spread source port says nothing about the listen port, so it counts as the listen port. That holds for the
// port that a hello came from, and for the port that the peer takes for our endpoint. listen is our listen port, 0 without one, and
// spreading are our source ports.
func FindNAT(m *Pending, listen uint16, spreading spread.Ports) error {
	seen := m.From.Dst
	if m.FromSource() {
		seen = netip.AddrPortFrom(seen.Addr(), m.Hello.Own.Port())
	}
	if endpointsDiffer(m.Hello.Own, seen) {
		return &natError{behind: "the peer", local: m.Hello.Own.String(), seen: seen.String()}
	}
	if listen == 0 {
		return nil
	}
	local, seen := netip.AddrPortFrom(m.From.Src, listen), m.Hello.Peer
	if spreading.Contains(seen.Port()) {
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
