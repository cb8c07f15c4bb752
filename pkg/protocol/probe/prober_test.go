// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// TestBlockedPortIsNoticedWithinSecond has the path drop one port at any moment, while others carry data as well.
func TestBlockedPortIsNoticedWithinSecond(t *testing.T) {
	for _, perSecond := range []int{100, 1000} {
		for _, others := range []int{0, 1, 15} {
			for seed := range seeds(6) {
				w := newWorld(t, 16, seed)
				for path := range 1 + others {
					w.flow(1+path, perSecond, 200)
				}
				w.run(20*time.Second + time.Duration(seed)*37*time.Millisecond)
				w.wantBlocked("before")
				w.paths[1].blocked = true
				took := w.until(5*time.Second, func() bool { return w.Blocked(0) })
				if took > time.Second {
					t.Errorf("%d packets per second, %d other flows, seed %d: noticed after %v, want a second at most", perSecond, others, seed, took)
				}
				w.run(5 * time.Second)
				w.wantBlocked("one", 1)
			}
		}
	}
}

// TestWorkingFlowsCostLittle counts what probes add to flows that lose nothing, in both directions.
func TestWorkingFlowsCostLittle(t *testing.T) {
	for _, flows := range []int{1, 16, 64} {
		w := newWorld(t, 64, 1)
		for path := range flows {
			w.flow(1+path, 1, 60)
		}
		w.run(time.Minute)
		before, messages := w.probes+w.reports, w.sent.All
		fires := w.fires
		w.run(10 * time.Minute)
		extra := w.probes + w.reports - before
		data := int(w.sent.All-messages) - (w.probes - before + w.reports)
		if 100*extra > 10*data {
			t.Errorf("%d flows: got %d messages beside %d with data, want a tenth at most", flows, extra, data)
		}
		if n := w.fires - fires; 4*n > data {
			t.Errorf("%d flows: called %d times for %d messages, want for one of four at most", flows, n, data)
		}
	}
}

// TestQuietPeersOfHubCostLittle has many peers with a packet per 25 seconds each, after their start.
func TestQuietPeersOfHubCostLittle(t *testing.T) {
	extra, data := 0, 0
	for peer := range 20 {
		w := newWorld(t, 64, uint64(peer))
		f := w.flow(1+peer%64, 1, 60)
		f.every = 25 * second
		w.run(10 * time.Minute) // of which the burst of the start is a part
		before := w.probes + w.reports
		w.run(time.Hour)
		extra += w.probes + w.reports - before
		data += int(time.Hour / (25 * time.Second))
	}
	if 10*extra > data {
		t.Errorf("got %d messages beside %d with data, want a tenth at most", extra, data)
	}
}

// TestQuietPeerIsLeftAlone sends a packet a minute, and then none.
func TestQuietPeerIsLeftAlone(t *testing.T) {
	w := newWorld(t, 64, 1)
	f := w.flow(1, 1, 60)
	w.run(10 * time.Minute)
	f.every = int64(time.Minute)
	w.run(30 * time.Minute)
	probes := w.probes
	w.run(10 * time.Hour)
	if n := w.probes - probes; n > 600/50+1 {
		t.Errorf("got %d probes in ten hours of a packet a minute, want 2 %% of these", n)
	}
	f.until = w.now
	w.run(time.Minute)
	probes, fires := w.probes, w.fires
	w.run(time.Hour)
	if w.probes != probes || w.fires != fires || w.next != 0 {
		t.Errorf("without data: got %d probes, %d calls, and another one in %v, want none", w.probes-probes, w.fires-fires, time.Duration(w.next-w.now))
	}
}

// TestOutageBlocksNothing has all paths carry nothing for a while, with flows of any rate.
func TestOutageBlocksNothing(t *testing.T) {
	for _, outage := range []time.Duration{50 * time.Millisecond, 300 * time.Millisecond, time.Second, 3 * time.Second, 20 * time.Second, 5 * time.Minute} {
		for seed := range seeds(4) {
			w := newWorld(t, 8, seed)
			w.flow(1, 1, 1480)
			w.flow(2, 20, 200)
			w.flow(3, 100, 1480)
			w.flow(4, 3, 60).copies = 4
			w.run(15*time.Second + time.Duration(seed)*71*time.Millisecond)
			w.outage = true
			w.run(outage)
			w.outage = false
			for range 30 {
				w.wantBlocked(fmt.Sprintf("outage of %v, seed %d", outage, seed))
				w.run(time.Second)
			}
			if limit, _ := w.Limit(); limit != 1480 {
				t.Errorf("outage of %v: got limit %d, want 1480", outage, limit)
			}
		}
	}
}

// TestDelayBlocksNothing has paths of unequal and varying delays, and reordering.
func TestDelayBlocksNothing(t *testing.T) {
	for _, delay := range []int64{0, 100, 400, 1500} {
		for seed := range seeds(5) {
			w := newWorld(t, 8, seed)
			for i := range w.paths {
				w.paths[i].delay += delay*tick + w.r.Int64N(300)*tick
				w.paths[i].jitter = 50 * tick
			}
			for path := 1; path <= 6; path++ {
				w.flow(path, []int{1, 5, 20, 100, 300, 1000}[path-1], 100)
			}
			for range 60 {
				w.run(time.Second)
				w.wantBlocked(fmt.Sprintf("delay of %d ms", delay))
			}
		}
	}
}

// TestSlowPortOpensAgain has a port whose messages take longer than those of the listen port, so that each test of it counts as lost at first.
func TestSlowPortOpensAgain(t *testing.T) {
	for _, extra := range []int64{0, 160, 400} {
		for _, perSecond := range []int{1, 20, 100, 1000} {
			for seed := range seeds(3) {
				w := newWorld(t, 8, seed)
				w.paths[1].delay += extra * tick
				w.flow(1, perSecond, 200)
				w.flow(2, 100, 200)
				w.run(20 * time.Second)
				w.paths[1].blocked = true
				w.until(time.Minute, func() bool { return w.Blocked(0) })
				w.run(30 * time.Second)
				w.paths[1].blocked = false
				w.until(2*time.Minute, func() bool { return !w.Blocked(0) })
			}
		}
	}
}

// TestPortThatBecomesSlowIsKept has messages of one port, or of all, arrive after they counted as lost. So the next ones are waited for.
func TestPortThatBecomesSlowIsKept(t *testing.T) {
	for _, extra := range []int64{300, 600, 1200} {
		for _, slow := range []int{1, 8} {
			for _, perSecond := range []int{20, 100, 1000} {
				for seed := range seeds(3) {
					w := newWorld(t, 8, seed)
					w.flow(1, perSecond, 200)
					w.flow(2, perSecond, 200)
					w.run(20 * time.Second)
					for path := 1; path <= slow; path++ {
						w.paths[path].delay += extra * tick
					}
					if extra > 300 {
						w.run(30 * time.Second) // it learns
					}
					for range 600 {
						w.wantBlocked(fmt.Sprintf("%d of 8 ports %d ms slower, %d packets per second", slow, extra, perSecond))
						w.run(100 * time.Millisecond)
					}
				}
			}
		}
	}
}

// TestCountsMayBeLarge begins with counts that a path had before, of which some wrap around soon.
func TestCountsMayBeLarge(t *testing.T) {
	for _, count := range []uint32{1<<31 - 1000, 1 << 31, 3 << 30, math.MaxUint32 - 2000, math.MaxUint32 - 50, math.MaxUint32} {
		for seed := range seeds(3) {
			w := newWorld(t, 8, seed)
			for i := range w.paths {
				w.sent.On[i], w.peer[i] = count, count
			}
			w.arm()
			w.flow(0, 50, 1480)
			w.flow(1, 100, 200)
			w.flow(2, 100, 200)
			w.run(time.Minute)
			w.wantBlocked(fmt.Sprintf("after %d messages", count))
			w.paths[1].blocked = true
			w.until(time.Second, func() bool { return w.Blocked(0) })
			w.paths[1].blocked = false
			w.paths[0].mtu = 1400
			w.until(30*time.Second, func() bool { limit, _ := w.Limit(); return limit <= 1400 })
			w.until(time.Minute, func() bool { return !w.Blocked(0) })
		}
	}
}

// TestLossyPathBlocksNothing loses every tenth message, in both directions, of flows that send in bursts, too.
func TestLossyPathBlocksNothing(t *testing.T) {
	for seed := range seeds(4) {
		w := newWorld(t, 8, seed)
		for i := range w.paths {
			w.paths[i].loss = 0.1
		}
		for path := 1; path <= 4; path++ {
			w.flow(path, []int{2, 20, 100, 500}[path-1], 1480)
		}
		w.run(time.Minute)
		w.wantBlocked("loss")
		probes, messages := w.probes, w.sent.All
		w.run(4 * time.Minute)
		w.wantBlocked("loss")
		if limit, _ := w.Limit(); limit != 1480 {
			t.Errorf("got limit %d, want 1480", limit)
		}
		if n := w.probes - probes; n > int(w.sent.All-messages)/50+5 {
			t.Errorf("got %d probes for %d messages", n, w.sent.All-messages)
		}
	}
}

// TestFirewallMovesAllFlows has the path drop all source ports, also those that carry no data yet, and admit them again.
func TestFirewallMovesAllFlows(t *testing.T) {
	for _, flows := range []int{1, 2, 16} {
		for seed := range seeds(5) {
			w := newWorld(t, 64, seed)
			for path := range flows {
				w.flow(1+path, 100, 200)
			}
			w.run(20 * time.Second)
			w.firewall(true)
			if took := w.until(5*time.Second, func() bool { return len(w.blockedPaths()) == 64 }); took > 1500*time.Millisecond {
				t.Errorf("%d flows: all ports are blocked after %v, want 1.5 s at most", flows, took)
			}
			w.run(time.Minute)
			w.wantBudget()
			w.firewall(false)
			w.until(2*time.Minute, func() bool { return len(w.blockedPaths()) == 0 })
		}
	}
}

// firewall drops what leaves from source ports.
func (w *world) firewall(drops bool) {
	for i := range w.paths[1:] {
		w.paths[1+i].blocked = drops
	}
}

// TestSparsePacketsFindFirewall has few packets, after a pause.
func TestSparsePacketsFindFirewall(t *testing.T) {
	for _, every := range []time.Duration{time.Second, 5 * time.Second, time.Minute} {
		for _, all := range []bool{true, false} {
			w := newWorld(t, 64, 1)
			w.run(10 * time.Second)
			w.paths[7].blocked = true
			if all {
				w.firewall(true)
			}
			f := w.flow(7, 1, 100)
			f.every = int64(every)
			w.run(10 * every)
			if f.lost > 3 {
				t.Errorf("a packet every %v, all ports blocked %v: got %d lost, want three at most", every, all, f.lost)
			}
			if got := len(w.blockedPaths()); got != map[bool]int{true: 64, false: 1}[all] {
				t.Errorf("a packet every %v: got %d ports blocked, all: %v", every, got, all)
			}
		}
	}
}

// TestSparseFlowNoticesBlockedPort has a path drop the port of a flow that has sent for long. There is a request for each 50 messages.
func TestSparseFlowNoticesBlockedPort(t *testing.T) {
	for _, every := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second} {
		w := newWorld(t, 64, 1)
		f := w.flow(7, 1, 100)
		f.every = int64(every)
		w.run(200 * every)
		w.paths[7].blocked = true
		if w.until(60*every, func() bool { return w.Blocked(6) }); f.lost > 52 {
			t.Errorf("a packet every %v: got %d lost, want those between two requests", every, f.lost)
		}
	}
}

// TestBlockedFromStartIsNoticed has the path drop ports before the first message.
func TestBlockedFromStartIsNoticed(t *testing.T) {
	w := newWorld(t, 4, 1)
	w.paths[2].blocked = true
	for path := 1; path <= 4; path++ {
		w.flow(path, 100, 200)
	}
	w.run(1500 * time.Millisecond)
	w.wantBlocked("from the start", 2)
}

// TestBlockedPortOpensAgain tests the port seldom, and only while data is sent.
func TestBlockedPortOpensAgain(t *testing.T) {
	w := newWorld(t, 4, 1)
	f := w.flow(1, 100, 200)
	w.run(5 * time.Second)
	w.paths[1].blocked = true
	w.run(10 * time.Minute)
	w.wantBlocked("blocked", 1)
	f.until = w.now
	w.run(2 * time.Minute)
	probes := w.probes
	w.run(time.Hour)
	if n := w.probes - probes; n > 0 {
		t.Errorf("without data: got %d probes, want none", n)
	}
	w.paths[1].blocked = false
	f.until, f.next = 1<<62, w.now
	w.until(70*time.Second, func() bool { return !w.Blocked(0) })
}

// TestBlockedPortIsTestedOnNewPath has ports that have been blocked for long.
func TestBlockedPortIsTestedOnNewPath(t *testing.T) {
	w := newWorld(t, 4, 1)
	w.flow(1, 100, 200)
	w.run(5 * time.Second)
	w.paths[1].blocked = true
	w.run(10 * time.Minute)
	w.paths[1].blocked = false
	w.Refill()
	w.refills++
	w.arm()
	w.until(2*time.Second, func() bool { return !w.Blocked(0) })
}

// TestNarrowPathIsFoundByLoss has one port's path carry less, or begin to.
func TestNarrowPathIsFoundByLoss(t *testing.T) {
	for name, late := range map[string]bool{"from the start": false, "later": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 64, 1)
			if !late {
				w.paths[9].mtu = 1400
			}
			w.flow(1, 50, 1480)
			w.run(2 * time.Minute)
			if limit, _ := w.Limit(); limit != 1480 {
				t.Fatalf("no data on the narrow path: got limit %d, want 1480", limit)
			}
			f := w.flow(9, 20, 1480)
			small := w.flow(9, 20, 100)
			if late {
				w.run(time.Minute)
				w.paths[9].mtu = 1400
			}
			w.until(20*time.Second, func() bool { limit, _ := w.Limit(); return limit <= 1400 })
			w.run(2 * time.Minute)
			lost := f.lost
			if limit, _ := w.Limit(); limit != 1400 {
				t.Errorf("got limit %d, want 1400", limit)
			}
			w.run(time.Hour)
			w.wantBlocked("narrow")
			if f.lost != lost || small.lost != 0 {
				t.Errorf("got %d packets lost in an hour, and %d small ones, want none", f.lost-lost, small.lost)
			}
			w.paths[9].mtu = 1500
			w.run(11 * time.Minute)
			if limit, _ := w.Limit(); limit != 1480 {
				t.Errorf("wide again: got limit %d, want 1480", limit)
			}
		})
	}
}

// TestStalledFlowFindsBlackHole has a flow whose large packets are all lost: it sends ten, and then one at a time, as TCP does.
func TestStalledFlowFindsBlackHole(t *testing.T) {
	w := newWorld(t, 64, 1)
	w.run(time.Minute)
	w.paths[3].mtu = 1400
	f := w.flow(3, 1, 1480)
	f.copies = 10
	w.run(time.Second)
	f.copies = 1
	w.until(20*time.Second, func() bool { limit, _ := w.Limit(); return limit <= 1400 })
	w.run(10 * time.Second)
	w.wantBlocked("black hole")
}

// TestListenPortAloneIsWatched has no source ports, as behind a NAT, and a path that becomes narrow.
func TestListenPortAloneIsWatched(t *testing.T) {
	w := newWorld(t, 0, 1)
	w.flow(0, 50, 1480)
	w.run(time.Minute)
	probes := w.probes
	w.run(time.Minute)
	if n := w.probes - probes; n > 20 {
		t.Errorf("got %d probes in a minute, want 15", n)
	}
	w.paths[0].mtu = 1400
	w.until(30*time.Second, func() bool { limit, _ := w.Limit(); return limit <= 1400 })
}

// TestPeerThatCountsNothingProvesNothing has a peer that does not know our ports yet.
func TestPeerThatCountsNothingProvesNothing(t *testing.T) {
	w := newWorld(t, 4, 1)
	w.counts = false
	for path := 1; path <= 4; path++ {
		w.flow(path, 100, 200)
	}
	w.firewall(true)
	w.run(10 * time.Second)
	w.wantBlocked("not counted")
	w.counts = true
	w.run(3 * time.Second)
	w.wantBlocked("counted", 1, 2, 3, 4)
}

// TestSilentPeerProvesNothing has a peer that answers no requests.
func TestSilentPeerProvesNothing(t *testing.T) {
	w := newWorld(t, 4, 1)
	w.flow(1, 100, 200)
	w.run(5 * time.Second)
	w.silent = true
	w.firewall(true)
	w.run(time.Minute)
	w.wantBlocked("no answers")
}

// TestRestartedPeerBlocksNothing has the peer's counters begin anew, again and again.
func TestRestartedPeerBlocksNothing(t *testing.T) {
	w := newWorld(t, 4, 1)
	for path := 1; path <= 4; path++ {
		w.flow(path, []int{1, 5, 30, 200}[path-1], 200)
	}
	for range 200 {
		w.run(time.Duration(w.r.Int64N(3 * second)))
		clear(w.peer)
		w.wantBlocked("restarted")
	}
}

// TestOtherSourcesBeginAnew has ports that were used before, and of which the peer has counted messages.
func TestOtherSourcesBeginAnew(t *testing.T) {
	w := newWorld(t, 4, 1)
	w.flow(1, 100, 1480)
	w.flow(2, 3, 200)
	w.run(20 * time.Second)
	w.SetSources(4)
	clear(w.sent.On)
	w.arm()
	for range 100 {
		w.run(100 * time.Millisecond)
		w.wantBlocked("other sources")
	}
	w.paths[1].blocked = true
	w.run(time.Second)
	w.wantBlocked("blocked", 1)
}

func TestBlockedSourceIsRestored(t *testing.T) {
	w := newWorld(t, 4, 1)
	w.Block(w.now, 2)
	w.wantBlocked("restored", 3)
	w.flow(3, 50, 100)
	w.run(500 * time.Millisecond)
	w.wantBlocked("not tested yet", 3)
	w.run(15 * time.Second)
	w.wantBlocked("admitted")
}

// TestUnansweredDataIsReasonToAsk has a flow of few packets, long after the burst of the start was used up.
func TestUnansweredDataIsReasonToAsk(t *testing.T) {
	w := newWorld(t, 4, 1)
	f := w.flow(1, 1, 100)
	f.every = 10 * second
	w.run(time.Hour)
	w.firewall(true)
	w.run(12 * time.Second)
	w.Unanswered()
	w.fire()
	w.run(3 * time.Second)
	if !w.Blocked(0) {
		t.Error("the port is open, want it blocked")
	}
}

// TestRandomFaultsAreFollowed blocks and opens ports, narrows paths, and has outages. In the end each port that carries data is in the right
// state.
func TestRandomFaultsAreFollowed(t *testing.T) {
	for seed := range seeds(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, 8, seed)
			for path := range 1 + w.r.IntN(8) {
				w.flow(1+path, 10+w.r.IntN(300), 60+w.r.IntN(1400))
			}
			for range 10 {
				p := &w.paths[1+w.r.IntN(8)]
				switch w.r.IntN(4) {
				case 0:
					p.blocked = !p.blocked
				case 1:
					p.mtu = 1300 + w.r.IntN(200)
				case 2:
					p.loss = 0.05 * float64(w.r.IntN(3))
				case 3:
					w.outage = true
					w.run(time.Duration(w.r.Int64N(10 * second)))
					w.outage = false
				}
				w.run(time.Duration(w.r.Int64N(30 * second)))
			}
			for i := range w.paths {
				w.paths[i].loss = 0
			}
			w.run(2 * time.Minute)
			for _, f := range w.flows {
				if got, want := w.Blocked(f.path-1), w.paths[f.path].blocked; got != want {
					t.Errorf("path %d: got blocked %v, want %v", f.path, got, want)
				}
				f.lost = 0
			}
			w.run(time.Minute)
			for _, f := range w.flows {
				if f.lost > 0 {
					t.Errorf("path %d: got %d packets of %d bytes lost in a minute, want none", f.path, f.lost, f.size)
				}
			}
		})
	}
}
