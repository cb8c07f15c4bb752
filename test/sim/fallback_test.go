// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// block has a firewall drop what A sends from source ports for MS: from all if N is even, from a third of them otherwise.
func (s *sim) block(e event) {
	share := uint16(0)
	if e.N%2 == 1 {
		share = 3
	}
	s.network.change(func() { s.network.access[e.A].firewall = firewall{time.Now().Add(e.d()), share} })
}

// The phases of a fallback: small packets bring up session and spread, flows send, a firewall drops what leaves from source ports or a link
// carries nothing, and the flows go on. Afterwards few packets follow.
const (
	fallbackBegins  = 8 * time.Second
	fallbackDisturb = 2 * time.Second // after the flows begin
	fallbackOutage  = 1500 * time.Millisecond
	fallbackNoticed = 1500 * time.Millisecond // within this time, round trips included
	fallbackLasts   = 6 * time.Second
	fallbackEvery   = 2 * time.Millisecond
	fallbackFlows   = 4
	sparseLasts     = time.Minute
	sparseEvery     = 200 * time.Millisecond
)

// fallback sends flows of 125 packets per second from A to B. They must reach B soon after a firewall drops their source ports. An outage, if N is a
// multiple of 5, must block no port. In the end none is blocked. There are few control messages, also while there are few packets.
func (s *sim) fallback(e event) {
	s.warmUp(e)
	h := s.hosts[e.A]
	var late []packetID
	var before control
	s.later(fallbackBegins, func() { s.checkSpread(h) })
	s.later(fallbackBegins, func() { before = h.control() })
	for at := time.Duration(0); at < fallbackLasts; at += fallbackEvery {
		flow := e.flow + 500 + uint16(at/fallbackEvery)%fallbackFlows
		s.later(fallbackBegins+at, func() {
			id := s.send(e.A, e.B, flow, 100, 1)
			if at > fallbackDisturb+fallbackNoticed {
				late = append(late, id)
			}
		})
	}
	outage := e.N%5 == 0
	s.later(fallbackBegins+fallbackDisturb, func() {
		if outage {
			s.cut(event{A: e.A, B: e.B, MS: int(fallbackOutage / time.Millisecond)})
		} else {
			s.block(event{A: e.A, N: e.N, MS: int((fallbackLasts - fallbackDisturb) / time.Millisecond)})
		}
	})
	s.later(fallbackBegins+fallbackLasts+time.Second, func() {
		s.checkFallback(h, late)
		s.checkControl(h, before)
		if outage {
			s.checkOpen(h)
		}
		before = h.control()
	})
	sparse := fallbackBegins + fallbackLasts + 2*time.Second
	for at := time.Duration(0); at < sparseLasts; at += sparseEvery {
		s.later(sparse+at, func() { s.send(e.A, e.B, e.flow+500, 100, 1) })
	}
	s.later(sparse+sparseLasts, func() {
		s.checkControl(h, before)
		s.checkOpen(h)
	})
}

// wall sends short flows from A to B while a firewall drops what leaves from A's source ports, from the start on. No packet may be lost: none may
// leave from a port from which no message has arrived.
func (s *sim) wall(e event) {
	s.block(event{A: e.A, MS: int(fallbackBegins+fallbackLasts+time.Second) * 2 / int(time.Millisecond)})
	s.warmUp(e)
	var all []packetID
	for at := time.Duration(0); at < fallbackBegins+fallbackLasts; at += 10 * fallbackEvery {
		flow := e.flow + 1000 + uint16(at/(100*fallbackEvery))
		s.later(at, func() { all = append(all, s.send(e.A, e.B, flow, 100, 1)) })
	}
	s.later(fallbackBegins+fallbackLasts+time.Second, func() {
		for _, id := range all {
			if s.schedule.Calm && s.model.deliveredAt(id).IsZero() {
				s.report.add("fallback", "packet %v was lost behind a firewall that has always dropped what leaves from source ports", id)
				return
			}
		}
	})
}

// checkFallback checks that packets arrived which were sent when source ports had been blocked for a while.
func (s *sim) checkFallback(h *host, late []packetID) {
	if !s.schedule.Calm || !h.alive() {
		return
	}
	for _, id := range late {
		if s.model.deliveredAt(id).IsZero() {
			s.report.add("fallback", "packet %v was lost more than %v after source ports were blocked", id, fallbackNoticed)
			return
		}
	}
}

// checkSpread checks that flows are spread, without which a fallback tells nothing.
func (s *sim) checkSpread(h *host) {
	if !s.schedule.Calm || !h.alive() {
		return
	}
	for key, spread := range h.Stats().(device.Stats).Spread.Peers {
		if !spread.Active && spread.Gathers {
			s.report.add("spread", "host %d does not spread flows to %s: %s", h.n, key, spread.Reason)
		}
	}
}

// checkControl checks that a host has sent few control messages beside packets: the burst of probes to each peer, one a minute, hellos, and 2 % of
// the packets in each direction.
func (s *sim) checkControl(h *host, before control) {
	if !s.schedule.Calm || !h.alive() {
		return
	}
	now := h.control()
	sent, packets := now.messages-before.messages, now.packets-before.packets
	if most := packets/50 + 27*uint64(s.schedule.Hosts-1); sent > most {
		s.report.add("probes", "host %d has sent %d control messages beside %d packets, want at most %d", h.n, sent, packets, most)
	}
}

// checkOpen checks that a host takes no source port for blocked.
func (s *sim) checkOpen(h *host) {
	if !s.schedule.Calm || !h.alive() {
		return
	}
	for key, spread := range h.Stats().(device.Stats).Spread.Peers {
		if len(spread.Blocked) > 0 {
			s.report.add("fallback", "host %d takes ports %v towards %s for blocked, which they are not", h.n, spread.Blocked, key)
		}
	}
}

// control is what a process has sent: control messages, and packets in both directions.
type control struct{ messages, packets uint64 }

func (h *host) control() (c control) {
	if !h.alive() {
		return c
	}
	stats := h.Stats().(device.Stats)
	c.messages = stats.Slow.TxControl
	for _, l := range stats.Lanes {
		c.packets += l.TxPackets + l.RxPackets
	}
	return c
}
