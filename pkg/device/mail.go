// SPDX-License-Identifier: Apache-2.0

package device

import (
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

var _ engine.SlowPath = (*Peer)(nil)

// pendingHello is a hello on its way from a lane to a worker. Of several only the last arrives.
type pendingHello struct {
	hello   wire.Hello
	from    underlay.Endpoint
	source  bool // it, or one that it replaced, came from a source port
	planned bool
	plan    []uint16
}

// eventsPerPeriod is how many hellos of one peer are looked at in a second, how many plans it is given in a minute, as each may move
// the flows of all that have its address to other lanes, and how often spreading to it is news in a minute.
const eventsPerPeriod = 8

// Hello implements engine.SlowPath.
func (p *Peer) Hello(plain []byte, from underlay.Endpoint) drop.Reason {
	if p.dev.spreading.Load().mode == config.SpreadOff || !p.helloRate.allow(p.dev.clock(), time.Second) {
		return drop.HelloUnwanted
	}
	m := &pendingHello{from: from}
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

// OnHeard implements engine.SlowPath.
func (p *Peer) OnHeard() { p.post(taskHello) }

// replaces makes m the mail of p.
func (m *pendingHello) replaces(p *Peer) {
	for {
		old := p.mail.Load()
		m.source = m.fromSource() || old != nil && old.source
		if p.mail.CompareAndSwap(old, m) {
			return
		}
	}
}

// ports are the source ports that the sender says it may use.
func (m *pendingHello) ports() spread.Ports {
	return spread.Ports{First: m.hello.First, Last: m.hello.Last}
}

// fromSource tells whether the hello came from one of them.
func (m *pendingHello) fromSource() bool {
	return m.ports().Contains(m.from.Dst.Port()) && m.from.Dst.Port() != m.hello.Own.Port()
}

// takePendingHello returns the mail, nil for none, with a plan for its sender if there is to be one: once in a session, and when
// the sender has other ports, but not too often. Planning asks the operating system, so it is done without holding mu.
func (p *Peer) takePendingHello() *pendingHello {
	m := p.mail.Swap(nil)
	if m == nil || p.dev.cfg.Plan == nil {
		return m
	}
	p.mu.Lock()
	stale := !p.hello.fresh || p.hello.theirPorts() != m.ports()
	p.mu.Unlock()
	ref := p.dev.port.Load()
	plannable := ref != nil && m.ports().Len() > 0 && m.from.Src.IsValid()
	if stale && plannable && p.planRate.allow(p.dev.clock(), time.Minute) {
		own := netip.AddrPortFrom(m.from.Src, ref.LocalPort())
		m.plan, m.planned = p.dev.cfg.Plan(own, m.from.Dst.Addr(), p.dev.mark.Load(), m.ports()), true
	}
	return m
}

// rate allows eventsPerPeriod events in each period.
type rate struct{ state atomic.Uint64 } // number of the period << 8 | events

func (r *rate) allow(now int64, period time.Duration) bool {
	number := uint64(now/int64(period)) << 8
	word := r.state.Load()
	if word&^0xff != number {
		r.state.Store(number | 1) // two that begin a period together count as one
		return true
	}
	return word&0xff < eventsPerPeriod && r.state.Add(1)&0xff <= eventsPerPeriod
}
