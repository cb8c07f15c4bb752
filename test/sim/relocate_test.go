// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// relocationMargin is the time from A's first message at its new place, which arrives after the delay of the network, until packets must reach it.
const relocationMargin = 100 * time.Millisecond

// relocate has A, which spreads, change its address: if N is 0 it is behind a NAT that keeps source ports but not the listen port, else it has two
// uplinks with addresses of their own. Packets must reach it as soon as its first message has arrived, and few control messages follow.
func (s *sim) relocate(e event) {
	s.warmUp(e)
	a, b := s.hosts[e.A], s.hosts[e.B]
	var late []packetID
	var before control
	for at := time.Duration(0); at < fallbackLasts; at += 10 * fallbackEvery {
		flow := e.flow + 500 + uint16(at/(10*fallbackEvery))%fallbackFlows
		s.later(fallbackBegins+at, func() {
			s.send(e.A, e.B, flow, 100, 1)
			id := s.send(e.B, e.A, flow, 100, 1)
			if at > fallbackDisturb+time.Duration(s.schedule.Network.DelayMS)*time.Millisecond+relocationMargin {
				late = append(late, id)
			}
		})
	}
	s.later(fallbackBegins, func() {
		s.checkSpread(a)
		before = b.control()
	})
	s.later(fallbackBegins+fallbackDisturb, func() {
		s.network.change(func() {
			x := s.network.access[e.A]
			x.generation, x.out = (x.generation+2)%100, map[uint16]netip.AddrPort{}
			x.nated, x.keepsPorts, x.uplinks = e.N == 0, e.N == 0, e.N != 0
		})
		if a.alive() {
			a.RoutesChanged()
		}
	})
	s.later(fallbackBegins+fallbackLasts+time.Second, func() {
		s.checkFallback(b, late)
		s.checkControl(b, before)
	})
}

// warmUp has packets bring up session and spread between A and B.
func (s *sim) warmUp(e event) {
	for at := time.Duration(0); at < fallbackBegins; at += time.Second {
		s.later(at, func() {
			s.send(e.A, e.B, e.flow+500, 100, 1)
			s.send(e.B, e.A, e.flow+500, 100, 1)
		})
	}
}

// forge has A send from an address at which it receives nothing, while it begins to use other ports. B must not follow a plan for that address: it
// may be another peer's.
func (s *sim) forge(e event) {
	s.warmUp(e)
	a, b := s.hosts[e.A], s.hosts[e.B]
	change := func(forges bool, listen uint16, ports spread.Ports) func() {
		return func() {
			s.network.change(func() { s.network.access[e.A].forges = forges })
			if a.alive() {
				a.RoutesChanged() // it does not know its address then
				a.must("changing the ports", a.Configure(config.Device{ListenPort: &listen, Settings: config.Settings{SpreadPorts: &ports}}))
			}
		}
	}
	s.later(fallbackBegins, change(true, port+1, spread.Ports{First: 61100, Last: 61199}))
	for at := time.Second; at < fallbackLasts; at += time.Second {
		s.later(fallbackBegins+at, func() {
			s.send(e.A, e.B, e.flow+500, 100, 1)
			if !b.alive() || b.port == nil {
				return
			}
			for _, p := range b.port.Selection().Plans {
				if forged := outside(e.A, s.network.access[e.A].generation+100); p.From == forged {
					s.report.add("plan", "host %d follows a plan of host %d for %v, where that receives nothing", e.B, e.A, forged)
				}
			}
		})
	}
	s.later(fallbackBegins+fallbackLasts, change(false, port, spread.DefaultPorts))
}
