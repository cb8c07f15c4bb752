// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// sim is one simulation.
type sim struct {
	schedule *schedule
	report   *report
	model    *model
	network  *simNetwork
	hosts    []*host // 0 is unused
	timeline []step
	began    time.Time
}

// step is something to do at a time.
type step struct {
	at time.Time
	do func()
}

// run runs a schedule in a bubble of its own, and returns the invariants that did not hold.
func run(t *testing.T, s *schedule) (found []violation) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil { // from synctest: goroutines are left, and all wait for ever
			found = append(found, violation{"goroutines", fmt.Sprintf("goroutines: %v", p)})
		}
	}()
	synctest.Test(t, func(*testing.T) { found = runInBubble(s) })
	return found
}

func runInBubble(s *schedule) []violation {
	x := &sim{schedule: s, report: &report{began: time.Now()}, began: time.Now(), hosts: make([]*host, s.Hosts+1)}
	x.model = newModel(s, x.report)
	x.network = newNetwork(s, newWatch(s, x.report, x.model))
	for n := 1; n <= s.Hosts; n++ {
		x.hosts[n] = newHost(x, n)
	}
	x.each((*host).start)
	for i, e := range s.Events {
		e.flow = uint16(i)
		x.later(e.at(), func() {
			x.report.note("event %+v", e)
			actions[e.Do](x, e)
			x.later(0, func() { x.each(x.checkHeld) })
		})
	}
	x.play()
	x.settle()
	x.rest()
	x.finish()
	return x.report.violations()
}

// now is the time since the beginning, for what needs a monotonic clock.
func (s *sim) now() int64 { return int64(time.Since(s.began)) + 1 }

func (s *sim) each(f func(*host)) {
	for _, h := range s.hosts[1:] {
		f(h)
	}
}

// later puts a step on the timeline, after all for the same instant.
func (s *sim) later(d time.Duration, do func()) {
	x := step{time.Now().Add(d), do}
	at, _ := slices.BinarySearchFunc(s.timeline, x, func(a, b step) int { return cmp.Or(a.at.Compare(b.at), -1) })
	s.timeline = slices.Insert(s.timeline, at, x)
}

// play runs the timeline to its end. Each step begins when all goroutines wait.
func (s *sim) play() {
	for len(s.timeline) > 0 {
		next := s.timeline[0]
		s.timeline = s.timeline[1:]
		time.Sleep(time.Until(next.at))
		synctest.Wait()
		next.do()
	}
	synctest.Wait()
}

const (
	settleSeconds = 40
	// settledAfter is the time, in seconds, within which each pair of peers must have a session once the network is perfect and both
	// send: data without an answer for 15 s, a handshake, and its retry.
	settledAfter = 28
)

// settle ends all disturbances, and checks that packets get through everywhere within the protocol's times.
func (s *sim) settle() {
	s.network.heal()
	s.each(func(h *host) {
		h.wall.Store(h.maxWall) // peers refuse initiations that are older than the last
	})
	var late []packetID
	for second := range settleSeconds {
		s.later(time.Duration(second)*time.Second, func() {
			for i, p := range s.schedule.pairs() {
				there, back := s.send(p[0], p[1], uint16(1000+i), 100, 1), s.send(p[1], p[0], uint16(1000+i), 100, 1)
				if second >= settledAfter {
					late = append(late, there, back)
				}
			}
		})
	}
	s.play()
	time.Sleep(5 * time.Second)
	synctest.Wait()
	s.checkSettled(late)
}

// checkSettled checks that packets were delivered. A host that was suspended ends its sessions before its peers do, which may cost a packet
// or two.
func (s *sim) checkSettled(late []packetID) {
	lost, most := map[[2]uint8]int{}, 0
	if slices.ContainsFunc(s.schedule.Events, func(e event) bool { return e.Do == "suspend" }) {
		most = 2
	}
	for _, id := range late {
		if !s.model.deliveredAt(id).IsZero() {
			continue
		}
		pair := [2]uint8{id.src, id.dst}
		if lost[pair]++; lost[pair] > most {
			s.report.add("liveness", "packet %v was lost more than %d s after the network had become perfect", id, settledAfter)
		}
	}
}

// rest lets time pass without traffic: keys are erased, and no timer is left.
func (s *sim) rest() {
	s.network.change(func() { s.network.watch.duties.off = true })
	s.each((*host).stopKeepalives)
	time.Sleep(25 * time.Minute)
	synctest.Wait()
	s.network.change(func() {
		s.network.watch.duties.checkAll()
		s.network.watch.liveness.evaluateAll()
		s.network.watch.checkExpired(s.model.gotAt)
	})
	s.wantNoReads("idle")
	s.each(s.checkCounts)
}

// stopKeepalives turns persistent keepalives off.
func (h *host) stopKeepalives() {
	if !h.sim.schedule.nated(h.n) {
		return
	}
	var off uint16
	var c config.Device
	for _, p := range h.configuration().Peers {
		c.Peers = append(c.Peers, config.Peer{PublicKey: p.PublicKey, Keepalive: &off})
	}
	h.must("turning keepalives off", h.Configure(c))
}

// wantNoReads checks that no device looks at its clock for a day: it has no timer, and no goroutine that is not blocked.
func (s *sim) wantNoReads(state string) {
	before := map[int]int64{}
	s.each(func(h *host) { before[h.n] = h.reads.Load() })
	time.Sleep(24 * time.Hour)
	synctest.Wait()
	s.each(func(h *host) {
		if n := h.reads.Load() - before[h.n]; n != 0 {
			s.report.add("timer", "host %d looked at the clock %d times in a day when it was %s", h.n, n, state)
		}
	})
}

// finish ends all processes. If one leaves a goroutine behind, the bubble panics.
func (s *sim) finish() {
	s.each((*host).end)
	s.wantNoReads("closed")
}
