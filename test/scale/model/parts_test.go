// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestEventsRunInTimeThenInsertionOrder(t *testing.T) {
	var c calendar
	rng := rand.New(rand.NewPCG(1, 1))
	type key struct {
		at int64
		n  int
	}
	var seen []key
	for n := range 500 {
		at := rng.Int64N(50)
		c.in(at, func() { seen = append(seen, key{at, n}) })
	}
	c.run(100)
	for i := 1; i < len(seen); i++ {
		if a, b := seen[i-1], seen[i]; a.at > b.at || a.at == b.at && a.n > b.n {
			t.Fatalf("%v before %v", a, b)
		}
	}
	if len(seen) != 500 || c.now != 100 {
		t.Errorf("%d events by %d", len(seen), c.now)
	}
}

func TestQueueIsFIFO(t *testing.T) {
	var q fifo[int]
	var twin []int
	rng := rand.New(rand.NewPCG(2, 2))
	for i := range 5000 {
		if len(twin) > 0 && rng.IntN(2) == 0 {
			if first, got := q.first(), q.pop(); got != twin[0] || first != got {
				t.Fatalf("%d and %d, want %d", first, got, twin[0])
			}
			twin = twin[1:]
		} else {
			q.push(i)
			twin = append(twin, i)
		}
		if q.len() != len(twin) {
			t.Fatalf("%d in the queue, want %d", q.len(), len(twin))
		}
	}
}

// TestLineServesWaitersInOrder has three cores want a line at once: they get it one after the other and burn their time.
func TestLineServesWaitersInOrder(t *testing.T) {
	var cal calendar
	m := newMachine(&cal, 3)
	l := &line{cal: &cal, alone: 10}
	ended := make([]int64, 3)
	for i, c := range m.cores {
		l.turn(c, 100, func() { ended[i] = cal.now })
	}
	cal.run(1000)
	l.turn(m.cores[2], 100, func() {})
	cal.run(2000)
	for i, want := range []int64{100, 200, 300} {
		waited := want
		if i == 2 {
			waited += 10 // it was the last, so that its next turn is cheap
		}
		if ended[i] != want || m.cores[i].used[UseWait] != waited {
			t.Errorf("core %d: had its turn by %d, waited %d, want %d and %d", i, ended[i], m.cores[i].used[UseWait], want, waited)
		}
	}
	if l.held != 310 {
		t.Errorf("the line was held for %d", l.held)
	}
}

func TestSoftirqsRunBetweenThreadSteps(t *testing.T) {
	var cal calendar
	m := newMachine(&cal, 1)
	var order []string
	jobs := 1
	thread := newThread(m, func() (job, bool) {
		jobs--
		return job{UseRx, []step{{ns: 100}, {ns: 100}}, func() { order = append(order, "thread") }}, jobs >= 0
	})
	thread.poke()
	cal.in(50, func() {
		m.cores[0].interrupt(job{UseIRQ, []step{{ns: 30}}, func() { order = append(order, "softirq") }})
	})
	cal.run(1000)
	if got := strings.Join(order, " "); got != "softirq thread" || thread.ran != 230 {
		t.Errorf("%s; the thread took %d", got, thread.ran)
	}
}

func TestPortPlanCoversEachQueueOnce(t *testing.T) {
	for _, queues := range []int{1, 2, 8, 32} {
		c := sample(queues)
		c.Spread = Planned
		s, err := newSim(c)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[int]bool{}
		for i, q := range s.a.out.queueOf {
			seen[q] = true
			if lane := s.a.out.laneOf[i]; lane != i%queues {
				t.Errorf("%d queues: port %d leads to lane %d", queues, i, lane)
			}
		}
		// A random key in a hundred leaves queues out of reach.
		if len(seen) != len(s.a.out.queueOf) || len(seen) != queues {
			t.Errorf("%d queues: %d ports lead to %d of them", queues, len(s.a.out.queueOf), len(seen))
		}
	}
}

func TestKernelsChoiceUsesAllLanes(t *testing.T) {
	c := sample(4)
	c.Spread, c.LaneByHash = LeastLoaded, true
	s, err := newSim(c)
	if err != nil {
		t.Fatal(err)
	}
	var count [4]int
	for _, lane := range s.a.out.laneOf {
		count[lane]++
	}
	for lane, n := range count {
		if n < 4 || n > 32 {
			t.Errorf("lane %d has %d of 64 ports", lane, n)
		}
	}
}

func TestAdjacentPortsFillLanesEvenly(t *testing.T) {
	for _, lanes := range []int{2, 4, 8, 16, 64} {
		c := sample(lanes)
		c.Spread = LeastLoaded
		s, err := newSim(c)
		if err != nil {
			t.Fatal(err)
		}
		count := make([]int, lanes)
		for _, lane := range s.a.out.laneOf {
			count[lane]++
		}
		if slices.Min(count) != 64/lanes || slices.Max(count) != 64/lanes {
			t.Errorf("lanes have %v of 64 ports", count)
		}
	}
}

func TestUSLFitRecoversParameters(t *testing.T) {
	cores := []int{1, 2, 4, 8, 16, 32, 64}
	for _, want := range []USL{{1, 0, 0}, {3, 0.02, 0}, {2, 0.05, 0.0004}, {5, 0, 0.001}} {
		var work []float64
		for _, n := range cores {
			work = append(work, want.At(n))
		}
		got := FitUSL(cores, work)
		if math.Abs(got.Serial-want.Serial) > 1e-6 || math.Abs(got.Coherence-want.Coherence) > 1e-6 || got.One != want.One {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if got := FitUSL([]int{1, 2}, []float64{1, 2.1}); got.Serial != 0 || got.Coherence != 0 {
		t.Errorf("work that grows faster than cores gives %+v", got)
	}
	if got := FitUSL(nil, nil); got != (USL{}) {
		t.Errorf("nothing gives %+v", got)
	}
}

func TestCostsRoundTripThroughJSON(t *testing.T) {
	want := sample(1).Costs
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Costs
	if err := json.Unmarshal(text, &got); err != nil || got != want {
		t.Errorf("%v: %+v, want %+v", err, got, want)
	}
	for name, change := range map[string][2]string{
		"a stage is missing": {`"seal"`, `"sail"`},
		"a cost below zero":  {`"element_ns":500`, `"element_ns":-500`},
		"no number":          {`"element_ns":500`, `"element_ns":"x"`},
	} {
		bad := strings.Replace(string(text), change[0], change[1], 1)
		if json.Unmarshal([]byte(bad), &got) == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestBinOccupancyMatchesRandomPlacement(t *testing.T) {
	for _, tt := range []struct {
		bins  int
		balls float64
		want  float64
	}{{1, 5, 1}, {2, 1, 1}, {2, 2, 1.5}, {16, 16, 10.3}, {8, 0, 0}} {
		if got := occupied(tt.bins, tt.balls); math.Abs(got-tt.want) > 0.05 {
			t.Errorf("%v balls in %d bins take up %v, want %v", tt.balls, tt.bins, got, tt.want)
		}
	}
}

// TestNoCoreIdlesWhileAThreadIsReady looks after every event.
func TestNoCoreIdlesWhileAThreadIsReady(t *testing.T) {
	for name, c := range scenes() {
		s, err := newSim(c)
		if err != nil {
			t.Fatal(err)
		}
		s.begin()
		for range 20_000 {
			if len(s.events) == 0 {
				break
			}
			s.run(s.events[0].at)
			for _, m := range []*machine{s.a.machine, s.b.machine} {
				if core := m.idle(nil); core != nil && m.ready.len() > 0 {
					t.Fatalf("%s: core %d is idle at %d, and %d threads are ready", name, core.index, s.now, m.ready.len())
				}
			}
		}
	}
}

func TestIdleReceiverBlocksSender(t *testing.T) {
	c := sample(4)
	c.Elephants, c.Window = 1, 1<<20
	c.Costs[AppReceive] = Cost{Element: 400_000}
	s, err := newSim(c)
	if err != nil {
		t.Fatal(err)
	}
	s.begin()
	for range 50 {
		s.run(s.now + 200_000)
		if f := s.busyFlows[0]; f.unread > c.Window {
			t.Fatalf("%d bytes on the way, %d are not read, of a window of %d", f.onTheWay, f.unread, c.Window)
		}
	}
	if f := s.busyFlows[0]; f.toRead.len() == 0 {
		t.Error("the receiver reads all there is")
	}
}
