// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

const second = int64(time.Second)

// network is a path for each source port, in virtual time, and the search at its end.
type network struct {
	Search
	now     int64
	mtu     []int // of each path; 0 drops all
	loss    float64
	delay   int64 // added to the round trip
	active  bool
	r       *rand.Rand
	probes  int
	answers []answer
}

// answer is one on its way to the search.
type answer struct {
	at   int64
	id   uint32
	size int
}

func newNetwork(mtu ...int) *network {
	return &network{mtu: mtu, active: true, r: rand.New(rand.NewPCG(1, 2)), now: second}
}

// sizes4 returns the sizes over IPv4 for a TUN of the given MTU.
func sizes4(mtu int) Sizes {
	return Sizes{Floor: FloorIPv4, Max: mtu + 60, Offset: 60, Step: 16}
}

// run passes time.
func (n *network) run(seconds int) {
	for end := n.now + int64(seconds)*second; n.now < end; n.now += second / 100 {
		for len(n.answers) > 0 && n.answers[0].at <= n.now {
			n.Answered(n.now, n.answers[0].id, n.answers[0].size)
			n.answers = n.answers[1:]
		}
		if p, ok := n.fireAt(n.now, n.active); ok {
			n.send(p)
		}
		if n.now/second != (n.now-second/100)/second {
			n.loseData()
		}
	}
}

// fireAt returns the probe that is due.
func (n *network) fireAt(now int64, active bool) (Probe, bool) {
	if n.expire(now, active); !n.ready(now) {
		return Probe{}, false
	}
	return n.take(now), true
}

// loseData has each path report the loss of data of the largest size, if it is lost.
func (n *network) loseData() {
	for path, mtu := range n.mtu {
		if limit, _ := n.Limit(); n.active && limit > mtu {
			n.doubt(n.now, path)
		}
	}
}

func (n *network) send(p Probe) {
	n.probes++
	if p.Size > n.mtu[p.Path%len(n.mtu)] || n.r.Float64() < n.loss {
		return
	}
	a := answer{n.now + n.delay + second/50 + n.r.Int64N(second/5), p.ID, p.Size}
	if n.r.IntN(4) == 0 && len(n.answers) > 0 { // duplicated, and in another order
		n.answers = append([]answer{a}, n.answers...)
	}
	n.answers = append(n.answers, a)
}

func (n *network) expect(t *testing.T, state State, limit int) {
	t.Helper()
	if got, _ := n.Limit(); n.State() != state || got != limit {
		t.Errorf("got %v with limit %d, want %v with limit %d", n.State(), got, state, limit)
	}
}

func TestLargestSizeIsConfirmedByOneProbe(t *testing.T) {
	n := newNetwork(1500)
	n.Start(n.now, sizes4(1420))
	n.run(2)
	n.expect(t, Complete, 1480)
	if n.probes != 1 {
		t.Errorf("got %d probes, want 1", n.probes)
	}
}

func TestSearchFindsLargestSizeThatFits(t *testing.T) {
	for _, tun := range []int{1280, 1420, 1440, 8940, 9000} {
		for mtu := 1280; mtu <= 9100; mtu += 37 {
			n := newNetwork(mtu)
			sizes := sizes4(tun)
			n.Start(n.now, sizes)
			n.run(120)
			got, _ := n.Limit()
			if n.State() != Complete || got > mtu || useful(sizes, got) != useful(sizes, min(mtu, sizes.Max)) {
				t.Errorf("TUN of %d over a path of %d: got %v with limit %d", tun, mtu, n.State(), got)
			}
		}
	}
}

// useful returns the largest size that data can have within a limit.
func useful(s Sizes, limit int) int {
	if limit == s.Max {
		return limit
	}
	return (limit-s.Offset)/s.Step*s.Step + s.Offset
}

func TestSearchFindsSizesBelowBase(t *testing.T) {
	n := newNetwork(1000)
	n.Start(n.now, sizes4(1420))
	n.run(120)
	if got, _ := n.Limit(); n.State() != Complete || got > 1000 || got <= 1000-16 {
		t.Errorf("got %v with limit %d, want complete and at most 1000", n.State(), got)
	}
}

func TestDeadPathDoesNotLimitData(t *testing.T) {
	n := newNetwork(0)
	n.Start(n.now, sizes4(1420))
	n.run(20)
	n.expect(t, Unreachable, 0)
	n.mtu[0] = 1500
	n.run(120)
	n.expect(t, Complete, 1480)
}

func TestBlackHoleIsLeftWithinTenProbes(t *testing.T) {
	n := newNetwork(9000)
	n.Start(n.now, sizes4(8940))
	n.run(30)
	n.expect(t, Complete, 9000)
	n.mtu[0], n.probes = 1400, 0
	for limit := 9000; limit > 1400; limit, _ = n.Limit() {
		n.run(1)
		if n.probes > 10 {
			t.Fatalf("data is still limited to %d bytes after %d probes, want at most 1400", limit, n.probes)
		}
	}
	n.run(60)
	n.expect(t, Complete, 1400)
}

func TestLargerPathIsFoundLater(t *testing.T) {
	n := newNetwork(1400)
	n.Start(n.now, sizes4(1420))
	n.run(60)
	n.expect(t, Complete, 1400)
	n.mtu[0] = 1500
	n.run(int(RaiseAfter/second) + 60)
	n.expect(t, Complete, 1480)
}

// TestLimitRisesAgainOnUnequalPaths has a path that carries less than the others, and even less for two minutes. Whichever path the larger size
// is found on, the limit becomes the largest size that all carry.
func TestLimitRisesAgainOnUnequalPaths(t *testing.T) {
	for narrow := range 4 {
		n := newNetwork(1500, 1500, 1500, 1500)
		n.mtu[narrow] = 1400
		n.Start(n.now, sizes4(1440))
		n.run(60)
		n.expect(t, Complete, 1400)
		n.mtu[narrow] = 1300
		n.run(120)
		n.expect(t, Complete, 1292) // the largest that data can have
		n.mtu[narrow] = 1400
		n.run(int(RaiseAfter/second) + 60)
		n.expect(t, Complete, 1400)
	}
}

func TestUnchangedPathSurvivesRaise(t *testing.T) {
	n := newNetwork(1400)
	n.Start(n.now, sizes4(1420))
	n.run(60)
	for range 2000 {
		n.run(1)
		if got, _ := n.Limit(); got != 1400 {
			t.Fatalf("got limit %d, want 1400", got)
		}
	}
}

func TestIdleSearchNeverWakes(t *testing.T) {
	n := newNetwork(1400)
	n.Start(n.now, sizes4(1420))
	n.active = false
	n.run(60)
	n.expect(t, Complete, 1400)
	if at := n.dueAt(false); at != 0 {
		t.Errorf("got a timer at %d, want none", at)
	}
	n.probes = 0
	n.run(2000)
	if n.probes != 0 {
		t.Errorf("got %d probes, want 0", n.probes)
	}
}

func TestSmallestOfSeveralPathsCounts(t *testing.T) {
	n := newNetwork(1500, 1500, 1436, 1500, 1400, 1450)
	n.Start(n.now, sizes4(1440))
	n.run(120)
	n.expect(t, Complete, 1400)
	for range 1500 { // raises do not touch the limit either
		n.run(1)
		if got, _ := n.Limit(); got != 1400 {
			t.Fatalf("got limit %d, want 1400", got)
		}
	}
}

func TestFilteredSourcePortDoesNotCount(t *testing.T) {
	n := newNetwork(1500, 0, 1500)
	n.Start(n.now, sizes4(1440))
	for range 120 {
		n.run(1)
		if got, _ := n.Limit(); got != 0 && got != 1500 || n.State() == Unreachable {
			t.Fatalf("got %v with limit %d, want 1500", n.State(), got)
		}
	}
}

func TestLimitHoldsWhenSearchBeginsAgain(t *testing.T) {
	n := newNetwork(1400)
	n.Start(n.now, sizes4(1420))
	n.run(60)
	n.expect(t, Complete, 1400)
	n.Stop()
	n.Start(n.now, sizes4(1420))
	for range 60 {
		n.run(1)
		if got, _ := n.Limit(); got != 1400 {
			t.Fatalf("got limit %d in state %v, want 1400", got, n.State())
		}
	}
	n.mtu[0] = 1500
	n.Stop()
	n.Start(n.now, sizes4(1420))
	n.run(2)
	n.expect(t, Complete, 1480)
	n.Start(n.now, sizes4(1300))
	n.expect(t, Complete, 1360)
}

func TestConfirmTriesPathAtOnce(t *testing.T) {
	n := newNetwork(1500, 1500, 1500)
	n.Start(n.now, sizes4(1420))
	n.run(60)
	n.expect(t, Complete, 1480)
	n.Confirm(n.now, 2)
	n.now += Pause
	p, ok := n.fireAt(n.now, false)
	if !ok || p.Path != 2 || p.Size != 1480 {
		t.Fatalf("got %+v, %v, want a probe of the limit on path 2", p, ok)
	}
	n.Confirm(n.now, 1) // while the answer is on its way
	if path, ok := n.Answered(n.now, p.ID, p.Size); !ok || path != 2 {
		t.Errorf("got the answer of path %d, %v", path, ok)
	}
	n.now += Pause
	if p, ok = n.fireAt(n.now, false); !ok || p.Path != 1 || p.Size != 1480 {
		t.Fatalf("got %+v, %v, want a probe of the limit on path 1", p, ok)
	}
	n.Answered(n.now, p.ID, p.Size)
	n.mtu[1] = 1400
	n.Confirm(n.now, 1)
	n.active = false
	n.run(60)
	n.expect(t, Complete, 1400)
}

// TestSlowPathIsNotNarrowAfterOutage has round trips of more than a second.
func TestSlowPathIsNotNarrowAfterOutage(t *testing.T) {
	n := newNetwork(1500)
	n.delay = 3 * second / 2
	n.Start(n.now, sizes4(1420))
	n.run(20)
	n.expect(t, Complete, 1480)
	n.mtu[0] = 0
	n.run(7)
	n.mtu[0] = 1500
	n.run(60)
	n.expect(t, Complete, 1480)
}

// TestConfirmingOftenProbesSeldom has somebody on the path who claims all the time that the limit is too large.
func TestConfirmingOftenProbesSeldom(t *testing.T) {
	n := newNetwork(1500)
	n.Start(n.now, sizes4(1420))
	n.run(5)
	n.probes = 0
	for range 100 {
		n.Confirm(n.now, 0)
		n.now += second / 20
		if p, ok := n.fireAt(n.now, false); ok {
			n.probes++
			n.Answered(n.now, p.ID, p.Size)
		}
	}
	if n.probes > 20 {
		t.Errorf("got %d probes in 5 s, want at most 20", n.probes)
	}
	n.expect(t, Complete, 1480)
}

func TestStaleAnswersAreIgnored(t *testing.T) {
	n := newNetwork(1500)
	n.Start(n.now, sizes4(1420))
	old, _ := n.fireAt(n.now, true)
	n.Stop()
	n.Start(n.now, sizes4(1420))
	if p, ok := n.fireAt(n.now+Pause-1, true); ok {
		t.Errorf("got probe %+v before the pause has ended", p)
	}
	n.now += Pause
	p, _ := n.fireAt(n.now, true)
	n.Answered(n.now, old.ID, old.Size)
	n.Answered(n.now, p.ID+1, p.Size)
	n.Answered(n.now, p.ID, p.Size-1)
	n.expect(t, Testing, 0)
	n.Answered(n.now, p.ID, p.Size)
	n.expect(t, Complete, 1480)
}

// TestRandomPathsAreFollowed changes paths, with loss: the limit exceeds the path for at most a few probes, and is exact in the end.
func TestRandomPathsAreFollowed(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			n := newNetwork(1500, 1500, 1500)
			n.r = rand.New(rand.NewPCG(seed, 3))
			n.loss = 0.1
			sizes := sizes4([]int{1420, 1440, 8940}[seed%3])
			n.Start(n.now, sizes)
			for range 4 {
				for i := range n.mtu {
					n.mtu[i] = 1280 + n.r.IntN(4000)
				}
				n.run(60 + n.r.IntN(120))
				n.limitFits(t)
			}
		})
	}
}

// limitFits passes time until data fits all paths.
func (n *network) limitFits(t *testing.T) {
	t.Helper()
	least := min(n.mtu[0], n.mtu[1], n.mtu[2])
	n.probes = 0
	for limit, _ := n.Limit(); limit == 0 || limit > least; limit, _ = n.Limit() {
		n.run(1)
		if n.probes > 150 {
			t.Fatalf("got limit %d after %d probes, want at most %d", limit, n.probes, least)
		}
	}
}

// TestOutageDoesNotLowerLimit has a path that carries nothing for some seconds, and then large packets again. Hosts keep a smaller
// path MTU that they were told for ten minutes.
func TestOutageDoesNotLowerLimit(t *testing.T) {
	for outage := 1; outage <= 20; outage++ {
		n := newNetwork(1500)
		n.Start(n.now, sizes4(1420))
		n.run(15)
		n.mtu[0] = 0
		for range outage {
			n.run(1)
		}
		n.mtu[0] = 1500
		for range 120 {
			if limit, _ := n.Limit(); limit != 1480 {
				t.Fatalf("after an outage of %d s: got limit %d in state %v, want 1480", outage, limit, n.State())
			}
			n.run(1)
		}
		n.expect(t, Complete, 1480)
	}
}

// TestSmallerMTUBoundsProbeInFlight has a probe of the larger size that is lost, and the next one as well.
func TestSmallerMTUBoundsProbeInFlight(t *testing.T) {
	n := newNetwork(9000)
	n.Start(n.now, sizes4(8940))
	n.run(5)
	n.Confirm(n.now, 0)
	n.mtu[0] = 1400
	n.run(1)
	n.Start(n.now, sizes4(1440))
	for range 60 * 100 {
		n.now += second / 100
		p, ok := n.fireAt(n.now, true)
		switch {
		case !ok:
		case n.State() == Searching && p.Size > 1500:
			t.Fatalf("got a probe of %d bytes, want at most 1500", p.Size)
		case p.Size <= 1500 && n.State() != Repeating:
			n.Answered(n.now, p.ID, p.Size)
		}
	}
	n.expect(t, Complete, 1500)
}

// TestSmallerMTUKeepsCompleteSearch follows the path afterwards. A search that does not know the smaller size begins again.
func TestSmallerMTUKeepsCompleteSearch(t *testing.T) {
	for name, c := range map[string]struct {
		path, seconds, mtu int  // the path, the time before, the new MTU
		asked              bool // a probe is on its way meanwhile, and is lost
		ok                 bool
		limit              int // afterwards, before the path becomes 1320
	}{
		"wide path":     {1500, 5, 1300, false, true, 1360},
		"narrow path":   {1400, 60, 1300, false, true, 1360},
		"narrower path": {1340, 60, 1380, false, true, 1340},
		"probe lost":    {1500, 5, 1300, true, true, 1360},
		"still testing": {1500, 0, 1300, false, false, 0},
		"larger MTU":    {1500, 5, 1440, false, false, 1480},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(c.path)
			n.Start(n.now, sizes4(1420))
			n.run(c.seconds)
			if c.asked {
				n.Confirm(n.now, 0)
				if _, fired := n.fireAt(n.now+second, true); !fired {
					t.Fatal("no probe")
				}
			}
			if n.Start(n.now, sizes4(c.mtu)); (n.State() == Complete) != c.ok {
				t.Fatalf("got %v, want it complete: %v", n.State(), c.ok)
			}
			if limit, _ := n.Limit(); limit != c.limit {
				t.Errorf("got limit %d, want %d", limit, c.limit)
			}
			if c.ok {
				n.mtu[0] = 1320
				n.run(60)
				n.expect(t, Complete, 1308) // the largest that data can have
			}
		})
	}
}
