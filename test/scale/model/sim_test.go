// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math"
	"reflect"
	"testing"
	"time"
)

// sampleConfig is a configuration with realistic costs.
func sampleConfig(cores int) Config {
	c := Config{
		Lines: Lines{Nonce: 100, WindowElement: 150, WindowPacket: 5, Send: 300, Alone: 5},
		Train: Train{Packets: 45, Bytes: 45 * 1380}, Ack: Train{Packets: 1, Bytes: 52},
		HandOff: 2000, Cores: cores, Window: 3 << 20, Delay: 20_000,
		Warmup: 3 * time.Millisecond, Duration: 6 * time.Millisecond, Seed: 7,
	}
	for s, us := range map[Stage]float64{
		AppSend: 14, TUNRead: 8, Split: 6, Seal: 28, Send: 10, Softirq: 12, Receive: 9, Open: 27, Merge: 4, TUNWrite: 15, AppReceive: 12,
	} {
		c.Costs[s] = Cost{Element: 500, Byte: (us*1000 - 500) / float64(c.Train.Bytes)}
	}
	return c
}

// scenarios are configurations of all kinds, by name.
func scenarios() map[string]Config {
	all := map[string]Config{}
	add := func(name string, cores int, change func(c *Config)) {
		c := sampleConfig(cores)
		change(&c)
		all[name] = c
	}
	add("one elephant", 4, func(c *Config) { c.Elephants = 1 })
	add("one elephant with help", 8, func(c *Config) { c.Elephants, c.Help = 1, true })
	add("one elephant with all help", 8, func(c *Config) { c.Elephants, c.Help, c.HelpReceive = 1, true, true })
	add("one port, written by the lanes of its flows", 8, func(c *Config) {
		c.Elephants, c.Mice, c.Help, c.HelpReceive, c.HelpWrite, c.Workers = 16, 1e8, true, true, true, 4
	})
	add("more workers than cores", 2, func(c *Config) { c.Elephants, c.Help, c.Lanes, c.Spread = 9, true, 8, LeastLoaded })
	add("spread", 16, func(c *Config) { c.Elephants, c.Spread = 24, LeastLoaded })
	add("planned", 16, func(c *Config) { c.Elephants, c.Spread, c.Help = 24, Planned, true })
	add("a small receiver", 16, func(c *Config) { c.Elephants, c.Spread, c.Receiver = 24, LeastLoaded, Host{Cores: 2, Workers: -1} })
	add("by hash", 8, func(c *Config) { c.Elephants, c.Spread, c.LaneByHash, c.SteerEven = 16, Planned, true, true })
	add("one machine", 2, func(c *Config) { c.Elephants, c.OneMachine, c.Cable = 4, true, true })
	add("mice", 8, func(c *Config) { c.Elephants, c.Mice, c.Spread = 2, 2e9, Planned })
	add("a slow wire", 8, func(c *Config) { c.Elephants, c.Link, c.Spread = 16, 5e9, LeastLoaded })
	add("an open flow that is too fast", 2, func(c *Config) { c.Poisson = 100_000 })
	return all
}

func run(t *testing.T, c Config) *Result {
	t.Helper()
	r, err := Run(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEveryByteIsDeliveredLostOrQueued(t *testing.T) {
	lost := map[Drop]int64{}
	for name, c := range scenarios() {
		r := run(t, c)
		sum := r.Delivered + r.Queued
		for d, n := range r.Lost {
			sum += n
			lost[d] += n
		}
		if r.Offered != sum || r.Delivered == 0 {
			t.Errorf("%s: offered %d is not delivered %d + queued %d + lost %v", name, r.Offered, r.Delivered, r.Queued, r.Lost)
		}
	}
	for _, d := range []Drop{DropTUN, DropLink, DropSocket} {
		if lost[d] == 0 {
			t.Errorf("no scenario has drops of kind %q", d)
		}
	}
}

func TestQueuesDrainWhenSendersStop(t *testing.T) {
	for name, c := range scenarios() {
		s, err := newSim(c)
		if err != nil {
			t.Fatal(err)
		}
		s.begin()
		s.runUntil(start + int64(c.Warmup))
		s.stopped = true
		s.runUntil(start + int64(time.Minute))
		r := s.result()
		if len(s.events) > 0 || r.Queued != 0 {
			t.Errorf("%s: got %d bytes queued and %d events pending, want none", name, r.Queued, len(s.events))
		}
		for _, m := range []*machine{s.a.machine, s.b.machine} {
			for _, core := range m.cores {
				if core.busy {
					t.Errorf("%s: core %d is still busy", name, core.index)
				}
			}
		}
		for _, f := range s.elephants {
			if f.inFlight != 0 || f.unread != 0 {
				t.Errorf("%s, flow %d: got %d bytes in flight, %d unread, want none", name, f.number, f.inFlight, f.unread)
			}
		}
	}
}

func TestKeepsTheOrderOfEachFlow(t *testing.T) {
	for name, c := range scenarios() {
		for seed := range uint64(3) {
			c.Seed = seed
			if r := run(t, c); r.Reordered != 0 || r.Trains == 0 {
				t.Errorf("%s, seed %d: got %d of %d trains reordered, want none of some", name, seed, r.Reordered, r.Trains)
			}
		}
	}
}

func TestUtilizationNeverExceedsOne(t *testing.T) {
	for name, c := range scenarios() {
		r := run(t, c)
		for _, use := range r.Use {
			sum := 0.0
			for _, x := range use {
				sum += x
			}
			if sum > 1+1e-9 || sum <= 0 {
				t.Errorf("%s: got CPU utilization %v, want above 0 and at most 1", name, sum)
			}
		}
		for _, b := range r.Busiest {
			if b.Share < 0 || b.Share > 1 {
				t.Errorf("%s: got utilization of %s %v, want 0 to 1", name, b.Resource, b.Share)
			}
		}
	}
}

func TestTheSameSeedGivesTheSameResult(t *testing.T) {
	for name, c := range scenarios() {
		if a, b := run(t, c), run(t, c); !reflect.DeepEqual(a, b) {
			t.Errorf("%s: two runs differ:\n%+v\n%+v", name, a, b)
		}
	}
	c := scenarios()["spread"]
	a := run(t, c)
	c.Seed++
	if b := run(t, c); reflect.DeepEqual(a, b) {
		t.Error("got the same result with another seed")
	}
}

// TestWaitingTimeMatchesQueueingTheory compares with the mean waiting time of M/D/1 (Pollaczek-Khinchine). Only one receive lane
// takes time.
func TestWaitingTimeMatchesQueueingTheory(t *testing.T) {
	const service = 20_000.0 // ns
	for _, load := range []float64{0.3, 0.6, 0.8} {
		c := Config{Train: Train{Packets: 1, Bytes: 1000}, Cores: 2, Duration: 2 * time.Second, Seed: 3, Poisson: load / service * 1e9}
		c.Costs[Open].Element = service
		r := run(t, c)
		want := service + load*service/(2*(1-load))
		if got := float64(r.Latency); math.Abs(got/want-1) > 0.05 {
			t.Errorf("load %v: got a latency of %v ns, want %v", load, got, want)
		}
		if busy := r.Busiest[0]; busy.Resource != ResourceRxLane || math.Abs(busy.Share-load) > 0.02 {
			t.Errorf("load %v: got busiest resource %+v, want %s with that load", load, busy, ResourceRxLane)
		}
	}
}

func TestReachesButDoesNotExceedItsBounds(t *testing.T) {
	even := func(c *Config) { c.Spread, c.SteerEven = Planned, true }
	tests := map[string]struct {
		cores  int
		change func(*Config)
		want   string
		least  float64 // of the bound
	}{
		"one flow":                    {8, func(c *Config) { c.Elephants = 1 }, ResourceRxLane, 0.95},
		"one flow, with help":         {8, func(c *Config) { c.Elephants, c.Help = 1, true }, ResourceRxLane, 0.85},
		"one port, with all help":     {16, func(c *Config) { c.Elephants, c.Help, c.HelpReceive, c.HelpWrite = 32, true, true, true }, ResourceQueue, 0.85},
		"many flows, one queue":       {8, func(c *Config) { c.Elephants = 32 }, ResourceRxLane, 0.9},
		"one core":                    {1, func(c *Config) { c.Elephants = 2 }, ResourceReceiver, 0.9},
		"two cores":                   {2, func(c *Config) { c.Elephants = 8; even(c) }, ResourceReceiver, 0.9},
		"all lanes busy":              {8, func(c *Config) { c.Elephants = 64; even(c) }, ResourceReceiver, 0.9},
		"one machine":                 {2, func(c *Config) { c.Elephants, c.OneMachine, c.Cable, c.Window = 8, true, true, 300_000; even(c) }, ResourceSender, 0.88},
		"a counter that takes a turn": {16, func(c *Config) { c.Elephants, c.Lines.Nonce = 32, 20_000; even(c) }, ResourceNonce, 0.9},
		"a wire":                      {16, func(c *Config) { c.Elephants, c.Link = 32, 20e9; even(c) }, ResourceLink, 0.9},
	}
	for name, tt := range tests {
		c := sampleConfig(tt.cores)
		tt.change(&c)
		bounds, err := Bounds(c)
		if err != nil {
			t.Fatal(err)
		}
		r := run(t, c)
		share := r.BitsPerSecond / bounds[0].BitsPerSecond
		if bounds[0].Resource != tt.want || share > 1.02 || share < tt.least {
			t.Errorf("%s: got %.2f of the bound of %q, want %v to 1.02 of that of %q", name, share, bounds[0].Resource, tt.least, tt.want)
		}
	}
}

func TestMoreResourcesNeverReduceThroughput(t *testing.T) {
	before := 0.0
	for _, cores := range []int{1, 2, 4, 8, 16} {
		c := sampleConfig(cores)
		c.Elephants, c.Spread, c.SteerEven = 32, Planned, true
		now := run(t, c).BitsPerSecond
		if now < before*0.98 {
			t.Errorf("got %.3[2]g bit/s with %[1]d cores, want at least %.3[3]g, as with half of them", cores, now, before)
		}
		before = now
	}
	better := func(what string, cores, flows int, change func(*Config)) {
		c := sampleConfig(cores)
		c.Elephants = flows
		without := run(t, c).BitsPerSecond
		change(&c)
		if with := run(t, c).BitsPerSecond; with < 1.2*without {
			t.Errorf("%s: got %.3g bit/s with it, %.3g without, want a fifth more", what, with, without)
		}
	}
	better("help for one elephant", 8, 1, func(c *Config) { c.Help = true })
	better("receiving for one elephant", 16, 1, func(c *Config) { c.Help, c.HelpReceive = true, true })
	better("writing for one port", 16, 16, func(c *Config) { c.HelpWrite = true })
	better("spreading", 8, 16, func(c *Config) { c.Spread = LeastLoaded })
	better("all that can be planned", 8, 16, func(c *Config) { c.Spread, c.SteerEven = Planned, true })
}

func TestCoresDoNotHelpAFlowThatIsNotSpread(t *testing.T) {
	var at [2]float64
	for i, cores := range []int{4, 32} {
		c := sampleConfig(cores)
		c.Elephants = 16
		at[i] = run(t, c).BitsPerSecond
	}
	if ratio := at[1] / at[0]; ratio > 1.1 || ratio < 0.9 {
		t.Errorf("one source port: got %.2f times the throughput with 32 cores as with 4, want 0.9 to 1.1", ratio)
	}
}

func TestShortFlowsEnd(t *testing.T) {
	r := run(t, scenarios()["mice"])
	if r.Finish <= 0 || r.FinishP99 < r.Finish || r.LatencyP50 > r.LatencyP99 {
		t.Errorf("got completion times %v (median), %v (p99), latencies %v (median), %v (p99), want positive and ordered", r.Finish, r.FinishP99, r.LatencyP50, r.LatencyP99)
	}
}

func TestInvalidConfigIsRejected(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no cores":          func(c *Config) { c.Cores = 0 },
		"no train":          func(c *Config) { c.Train.Bytes = 0 },
		"no time":           func(c *Config) { c.Duration = 0 },
		"an unknown spread": func(c *Config) { c.Spread = 9 },
		"lanes below zero":  func(c *Config) { c.Lanes = -1 },
		"no receiver":       func(c *Config) { c.Receiver = Host{Lanes: 2} },
	} {
		c := sampleConfig(2)
		change(&c)
		if _, err := Run(c); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := Bounds(c); err == nil {
			t.Errorf("%s: no error from Bounds", name)
		}
	}
}

func TestSmallerReceiverLimits(t *testing.T) {
	c := sampleConfig(16)
	c.Elephants, c.Spread, c.ClosedLoop, c.Window = 32, LeastLoaded, true, 4*c.Train.Bytes
	large := run(t, c).BitsPerSecond
	c.Receiver = Host{Cores: 2}
	small := run(t, c)
	list, err := Bounds(c)
	if err != nil {
		t.Fatal(err)
	}
	if list[0].Resource != ResourceReceiver || small.BitsPerSecond > list[0].BitsPerSecond*1.02 || small.BitsPerSecond > large/4 {
		t.Errorf("got %v with 2 of 16 cores at the receiver, %v with all; the lowest bound is %+v", small.BitsPerSecond, large, list[0])
	}
}
