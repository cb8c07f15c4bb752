// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math/rand/v2"
	"net/netip"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// actions are all kinds of events. They run while all goroutines of devices wait. Those that need a living process do nothing without.
var actions = map[string]func(*sim, event){
	"send":     func(s *sim, e event) { s.sendEvery(e, 1) },
	"train":    func(s *sim, e event) { s.sendEvery(e, 40) },
	"elephant": func(s *sim, e event) { s.elephant(e) },
	"burst":    func(s *sim, e event) { s.burst(e) },
	"roam":     func(s *sim, e event) { s.roam(e) },
	"forget":   func(s *sim, e event) { s.forget(e) },
	"cut":      func(s *sim, e event) { s.cut(e) },
	"narrow":   func(s *sim, e event) { s.narrow(e) },
	"hold":     func(s *sim, e event) { s.hold(e) },
	"pause":    func(s *sim, e event) { s.pause(e) },
	"kill":     func(s *sim, e event) { s.kill(e) },
	"upgrade":  func(s *sim, e event) { s.upgrade(e) },
	"down":     func(s *sim, e event) { s.down(e) },
	"clock":    func(s *sim, e event) { s.hosts[e.A].stepWall(e.d() * time.Duration(e.N-20)) },
	"suspend":  func(s *sim, e event) { living(func(h *host) { h.suspend(e.d()) })(s, e) },
	"junk":     func(s *sim, e event) { s.junk(e) },
	"flip":     func(s *sim, e event) { s.flip(e) },
	"replay":   func(s *sim, e event) { s.replay(e, false) },
	"move":     func(s *sim, e event) { s.replay(e, true) },
	"spoof":    func(s *sim, e event) { s.spoof(e) },
	"stray":    func(s *sim, e event) { s.sendTo(e, "10.77.0.1") },
	"spray":    func(s *sim, e event) { s.spray(e) },
	"flood":    func(s *sim, e event) { s.flood(e) },
	"outage":   func(s *sim, e event) { s.outage(e) },
	"block":    func(s *sim, e event) { s.block(e) },
	"fallback": func(s *sim, e event) { s.fallback(e) },
	"wall":     func(s *sim, e event) { s.wall(e) },
	"relocate": func(s *sim, e event) { s.relocate(e) },
	"forge":    func(s *sim, e event) { s.forge(e) },
}

// living makes an action of a method of the host A, if its process runs.
func living(f func(*host)) func(*sim, event) {
	return func(s *sim, e event) {
		if h := s.hosts[e.A]; h.alive() {
			f(h)
		}
	}
}

// upgrade replaces A's process by another one, which takes MS to prepare, at most 20 s. The old one carries packets meanwhile, and passes on
// changes at half and three quarters of that time.
func (s *sim) upgrade(e event) {
	h := s.hosts[e.A]
	if !h.alive() || h.snapshot != nil {
		return
	}
	prepared, takes := h.prepare(), min(e.d(), 20*time.Second)
	unlessKilled := func(f func()) func() {
		return func() {
			if h.snapshot == prepared {
				f()
			}
		}
	}
	s.later(takes/2, unlessKilled(h.sendChanges))
	s.later(takes*3/4, unlessKilled(h.sendChanges))
	s.later(takes, unlessKilled(h.upgrade))
}

// sendEvery sends N trains of so many packets from A to B, one every MS.
func (s *sim) sendEvery(e event, packets int) {
	for i := range e.N {
		s.later(e.d()*time.Duration(i), func() { s.send(e.A, e.B, e.flow, e.Size, packets) })
	}
}

// send sends one train of a flow, if the sender is online.
func (s *sim) send(from, to int, number uint16, size, packets int) (first packetID) {
	h := s.hosts[from]
	if !h.online() {
		return packetID{}
	}
	train, first := s.model.packets(from, to, number, size, packets)
	if h.wallIsRight() && s.hosts[to].wallIsRight() {
		s.network.change(func() { s.network.watch.liveness.send(first) })
	}
	h.send(int(number), train)
	return first
}

// burst sends N packets from A to B at once.
func (s *sim) burst(e event) {
	for range e.N {
		s.send(e.A, e.B, e.flow, e.Size, 1)
	}
}

// The phases of an elephant, in ms: small packets bring up session and spread, the flow becomes large enough to be sprayed, it is sprayed, and it goes on
// slowly.
const (
	elephantBegins = 8000
	elephantGrows  = 140 // the largest flow before may have a head start of 3 MB
	elephantLasts  = 250
	elephantEnds   = 600
)

// elephant sends one flow from A to B that is sprayed. It has large packets, which are fewer.
func (s *sim) elephant(e event) {
	at := func(ms, trains, packets int) {
		s.later(time.Duration(ms)*time.Millisecond, func() {
			for range trains {
				s.send(e.A, e.B, e.flow, 21_100, packets)
			}
		})
	}
	for ms := 0; ms < elephantBegins; ms += 1000 {
		s.later(time.Duration(ms)*time.Millisecond, func() {
			s.send(e.A, e.B, e.flow+500, 100, 1)
			s.send(e.B, e.A, e.flow+500, 100, 1)
		})
	}
	ms := elephantBegins
	for ; ms < elephantBegins+elephantGrows; ms++ {
		at(ms, 2, 3) // 127 MB/s
	}
	for ; ms < elephantBegins+elephantGrows+elephantLasts; ms += 2 {
		at(ms, 1, 3) // 32 MB/s
	}
	for ; ms < elephantBegins+elephantGrows+elephantLasts+elephantEnds; ms += 5 {
		at(ms, 1, 1)
	}
	s.later(time.Duration(ms)*time.Millisecond, func() {
		if s.schedule.Calm && s.hosts[e.A].Stats().(device.Stats).Lanes[0].TxSprayed == 0 {
			s.report.add("spray", "host %d has not sprayed its large flow to host %d", e.A, e.B)
		}
	})
}

// roam moves A to another address if it may roam, the last host otherwise.
func (s *sim) roam(e event) {
	if !s.schedule.roams(e.A) {
		e.A = s.schedule.Hosts
	}
	a := s.network.access[e.A]
	s.network.change(func() {
		a.generation = (a.generation + 1) % 256
		a.out = map[uint16]netip.AddrPort{}
	})
}

// forget lets the NAT of A forget its mappings.
func (s *sim) forget(e event) {
	s.network.change(func() { s.network.access[e.A].out = map[uint16]netip.AddrPort{} })
}

// cut loses everything between A and B for MS.
func (s *sim) cut(e event) {
	s.network.change(func() {
		until := time.Now().Add(e.d())
		s.network.link(e.A, e.B).cutUntil, s.network.link(e.B, e.A).cutUntil = until, until
	})
}

// pathMTUKept is the time for which a host with spread may drop packets that were too large for the path.
const pathMTUKept = 15 * time.Minute

// narrow loses what is larger than Size on the way from A to B for MS.
func (s *sim) narrow(e event) {
	s.network.change(func() {
		l := s.network.link(e.A, e.B)
		l.narrow, l.narrowTo = e.Size, time.Now().Add(e.d())
		if s.schedule.Spread {
			s.network.watch.liveness.lost(e.A, e.B, time.Now().Add(pathMTUKept))
		}
	})
}

// hold delays the next N datagrams from A to B by MS, which may be longer than their session lasts.
func (s *sim) hold(e event) {
	s.network.change(func() {
		l := s.network.link(e.A, e.B)
		l.held, l.holdFor = e.N, e.d()
	})
}

// pause lets A receive nothing for MS, and everything at once then.
func (s *sim) pause(e event) {
	s.network.change(func() { s.network.access[e.A].pausedUntil = time.Now().Add(e.d()) })
}

// kill ends the process of A, and starts it again after MS.
func (s *sim) kill(e event) {
	h := s.hosts[e.A]
	if !h.alive() {
		return
	}
	h.kill()
	s.later(e.d(), h.start)
}

// down sets the interface of A down for MS.
func (s *sim) down(e event) {
	h := s.hosts[e.A]
	if !h.alive() {
		return
	}
	h.setUp(false)
	s.later(e.d(), func() {
		if h.alive() {
			h.setUp(true)
		}
	})
}

// junk sends N random datagrams to A, some with a header of WireGuard.
func (s *sim) junk(e event) {
	r := s.random(e)
	for range e.N {
		b := make([]byte, r.IntN(200))
		fill(r, b)
		if len(b) >= 4 && r.IntN(2) == 0 {
			copy(b, []byte{byte(1 + r.IntN(4)), 0, 0, 0})
		}
		s.network.inject(e.A, stranger(attacker), b)
	}
}

func fill(r *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// captured are up to N datagrams that have arrived at A and that it cannot accept again, chosen at random.
func (s *sim) captured(e event, r *rand.Rand) (some []transit) {
	s.network.change(func() {
		all := s.network.access[e.A].captured
		for range min(e.N, len(all)) {
			if t := all[r.IntN(len(all))]; s.network.watch.accepted(&t) {
				some = append(some, t)
			}
		}
	})
	return some
}

// flip sends copies of datagrams that have arrived at A, with one bit changed, cut short, or with more bytes.
func (s *sim) flip(e event) {
	r := s.random(e)
	for _, t := range s.captured(e, r) {
		b := append([]byte(nil), t.Payload...)
		switch r.IntN(10) {
		case 0:
			b = b[:r.IntN(len(b))]
		case 1:
			b = append(b, make([]byte, 1+r.IntN(40))...)
		default:
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		}
		s.network.inject(e.A, stranger(attacker), b)
	}
}

// replay sends datagrams again that have arrived at A, from their address or from the attacker's.
func (s *sim) replay(e event, move bool) {
	for _, t := range s.captured(e, s.random(e)) {
		from := t.From
		if move {
			from = stranger(attacker)
		}
		s.network.inject(e.A, from, t.Payload)
	}
}

// spoof sends a packet from A to B that has the address of another of B's peers.
func (s *sim) spoof(e event) {
	h, from := s.hosts[e.A], netip.AddrFrom4([4]byte{10, 9, 0, byte(e.N)}) // of the silent peer
	if other := 1 + (e.A+e.N)%s.schedule.Hosts; other != e.A && other != e.B {
		from, _ = devicetest.Inner(byte(other))
	}
	if h.online() {
		h.send(0, s.model.spoof(e.A, e.B, from, e.Size))
	}
}

// sendTo sends a packet from A to an address that no host has.
func (s *sim) sendTo(e event, address string) {
	h := s.hosts[e.A]
	if !h.online() {
		return
	}
	ends := devicetest.Ends(byte(e.A), byte(e.B), 5, false)
	ends.Dst = netip.AddrPortFrom(netip.MustParseAddr(address), 7)
	payload, _ := s.model.payload(e.A, e.B, undeliverable, e.Size)
	h.send(0, flow.WithVnetHeader(ends.UDP(payload)))
}

// maxWaiting is the number of trains that may wait for a session with one peer.
const maxWaiting = 128

// spray sends more packets from A to a peer that never answers than may wait for a session, and checks that the others were dropped.
func (s *sim) spray(e event) {
	h, n := s.hosts[e.A], 10*e.N
	if !h.online() {
		return
	}
	before := sum(h.dropCounts(), true)
	for range n {
		s.sendTo(e, "10.9.0.1")
	}
	synctest.Wait()
	if dropped := sum(h.dropCounts(), true) - before; n > maxWaiting && dropped < uint64(n-maxWaiting) {
		s.report.add("memory", "host %d dropped %d of %d packets to a peer that does not answer, so more than %d wait", e.A, dropped, n, maxWaiting)
	}
}

// Packets that wait for silent peers may take 1 MiB for each, and 32 MiB for all.
const (
	silentPeers  = 40
	silentTrains = 20
	silentTrain  = 3 * 20_000 // bytes
)

// outage sends more packets from A to many peers that never answer than may wait for sessions.
func (s *sim) outage(e event) {
	h := s.hosts[e.A]
	if !h.online() {
		return
	}
	ends := devicetest.Ends(byte(e.A), byte(e.B), 6, false)
	for i := range silentPeers * silentTrains {
		ends.Dst = netip.AddrPortFrom(silentAddress(1+i%silentPeers), 7)
		var payload []byte
		for range 3 {
			next, _ := s.model.payload(e.A, e.B, undeliverable, silentTrain/3)
			payload = append(payload, next...)
		}
		h.send(0, ends.UDPTrain(len(payload)/3, payload))
	}
}

// silentAddress is an address of a peer that never answers.
func silentAddress(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, byte(n), 1}) }

// random are random numbers of an event.
func (s *sim) random(e event) *rand.Rand {
	return rand.New(rand.NewPCG(s.schedule.Seed, uint64(e.AtMS)<<16|uint64(e.N)))
}
