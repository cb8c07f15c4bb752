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
	var c eventQueue
	rng := rand.New(rand.NewPCG(1, 1))
	type key struct {
		at int64
		n  int
	}
	var seen []key
	for n := range 500 {
		at := rng.Int64N(50)
		c.after(at, func() { seen = append(seen, key{at, n}) })
	}
	c.runUntil(100)
	for i := 1; i < len(seen); i++ {
		if a, b := seen[i-1], seen[i]; a.at > b.at || a.at == b.at && a.n > b.n {
			t.Fatalf("event %v ran before %v", a, b)
		}
	}
	if len(seen) != 500 || c.now != 100 {
		t.Errorf("got %d events run, time %d, want 500, 100", len(seen), c.now)
	}
}

func TestQueueIsFIFO(t *testing.T) {
	var q fifo[int]
	var want []int
	rng := rand.New(rand.NewPCG(2, 2))
	for i := range 5000 {
		if len(want) > 0 && rng.IntN(2) == 0 {
			if first, got := q.first(), q.pop(); got != want[0] || first != got {
				t.Fatalf("first() = %d, pop() = %d, want %d", first, got, want[0])
			}
			want = want[1:]
		} else {
			q.push(i)
			want = append(want, i)
		}
		if q.len() != len(want) {
			t.Fatalf("len() = %d, want %d", q.len(), len(want))
		}
	}
}

// TestCacheLineServesWaitersInOrder lets three cores acquire a cache line at the same time.
func TestCacheLineServesWaitersInOrder(t *testing.T) {
	var cal eventQueue
	m := newMachine(&cal, 3)
	l := &cacheLine{queue: &cal, uncontended: 10}
	ended := make([]int64, 3)
	for i, c := range m.cores {
		l.acquire(c, 100, func() { ended[i] = cal.now })
	}
	cal.runUntil(1000)
	l.acquire(m.cores[2], 100, func() {})
	cal.runUntil(2000)
	for i, want := range []int64{100, 200, 300} {
		waited := want
		if i == 2 {
			waited += 10 // it was the last to hold the line, so that its next acquisition is cheap
		}
		if ended[i] != want || m.cores[i].used[UseWait] != waited {
			t.Errorf("core %d: got end %d, waiting time %d, want %d, %d", i, ended[i], m.cores[i].used[UseWait], want, waited)
		}
	}
	if l.held != 310 {
		t.Errorf("the line was held for %d ns, want 310", l.held)
	}
}

func TestSoftirqsRunBetweenThreadSteps(t *testing.T) {
	var cal eventQueue
	m := newMachine(&cal, 1)
	var order []string
	jobs := 1
	thread := newThread(m, func() (job, bool) {
		jobs--
		return job{UseRx, []step{{ns: 100}, {ns: 100}}, func() { order = append(order, "thread") }}, jobs >= 0
	})
	thread.wake()
	cal.after(50, func() {
		m.cores[0].interrupt(job{UseIRQ, []step{{ns: 30}}, func() { order = append(order, "softirq") }})
	})
	cal.runUntil(1000)
	if got := strings.Join(order, " "); got != "softirq thread" || thread.ran != 230 {
		t.Errorf("got order %q, thread time %d, want \"softirq thread\", 230", got, thread.ran)
	}
}

func TestPortPlanCoversEachQueueOnce(t *testing.T) {
	for _, queues := range []int{1, 2, 8, 32} {
		c := sampleConfig(queues)
		c.Spread = Planned
		s, err := newSim(c)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[int]bool{}
		for i, q := range s.a.out.queueOf {
			seen[q] = true
			if lane := s.a.out.laneOf[i]; lane != i%queues {
				t.Errorf("%d queues, port %d: got lane %d, want %d", queues, i, lane, i%queues)
			}
		}
		// With one random key in a hundred, some queues are not reachable.
		if len(seen) != len(s.a.out.queueOf) || len(seen) != queues {
			t.Errorf("%d queues: got %d ports on %d queues, want one port per queue", queues, len(s.a.out.queueOf), len(seen))
		}
	}
}

func TestReuseportHashUsesAllLanes(t *testing.T) {
	c := sampleConfig(4)
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
			t.Errorf("lane %d: got %d of 64 ports, want 4 to 32", lane, n)
		}
	}
}

func TestAdjacentPortsFillLanesEvenly(t *testing.T) {
	for _, lanes := range []int{2, 4, 8, 16, 64} {
		c := sampleConfig(lanes)
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
			t.Errorf("got ports by lane %v, want %d each", count, 64/lanes)
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
		t.Errorf("throughput that grows faster than cores: got %+v, want no serial fraction and no coherence", got)
	}
	if got := FitUSL(nil, nil); got != (USL{}) {
		t.Errorf("no data: got %+v, want zero", got)
	}
}

func TestCostsRoundTripThroughJSON(t *testing.T) {
	want := sampleConfig(1).Costs
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Costs
	if err := json.Unmarshal(text, &got); err != nil || got != want {
		t.Errorf("got %+v, error %v, want %+v", got, err, want)
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
			t.Errorf("occupied(%d, %v) = %v, want %v", tt.bins, tt.balls, got, tt.want)
		}
	}
}

// TestNoCoreIdlesWhileAThreadIsReady checks after every event.
func TestNoCoreIdlesWhileAThreadIsReady(t *testing.T) {
	for name, c := range scenarios() {
		s, err := newSim(c)
		if err != nil {
			t.Fatal(err)
		}
		s.begin()
		for range 20_000 {
			if len(s.events) == 0 {
				break
			}
			s.runUntil(s.events[0].at)
			for _, m := range []*machine{s.a.machine, s.b.machine} {
				if core := m.idle(nil); core != nil && m.ready.len() > 0 {
					t.Fatalf("%s: core %d is idle at time %d while %d threads are ready", name, core.index, s.now, m.ready.len())
				}
			}
		}
	}
}

func TestSlowReceiverBlocksSender(t *testing.T) {
	c := sampleConfig(4)
	c.Elephants, c.Window = 1, 1<<20
	c.Costs[AppReceive] = Cost{Element: 400_000}
	s, err := newSim(c)
	if err != nil {
		t.Fatal(err)
	}
	s.begin()
	for range 50 {
		s.runUntil(s.now + 200_000)
		if f := s.elephants[0]; f.unread > c.Window {
			t.Fatalf("got %d bytes in flight and %d unread, want at most a window of %d", f.inFlight, f.unread, c.Window)
		}
	}
	if f := s.elephants[0]; f.readQueue.len() == 0 {
		t.Error("got an empty read queue, want data that the slow receiver has not read")
	}
}
