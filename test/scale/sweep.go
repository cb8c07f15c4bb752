// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/ropewalk/ropewalk/test/scale/model"
)

// config is a run with these costs; the caller says with how many cores and flows.
func (f *costFile) config() model.Config {
	return model.Config{
		Costs: f.Stages, Lines: f.Lines, Train: f.Train, Ack: f.Ack, HandOff: f.HandOff.Over + f.HandOff.Wake, HandBack: f.HandOff.Back,
		Window: 3 << 20, Delay: int64(25 * time.Microsecond), Closed: true,
		Warmup: 10 * time.Millisecond, Duration: 30 * time.Millisecond, Seed: 1,
	}
}

// way is a way to choose ports, lanes and queues.
type way struct {
	name   string
	config func(c *model.Config)
}

// planned is the best that there is.
const planned = "planned by the receiver"

// ways go from what there was to what might be: each takes one more hash away.
func ways() []way {
	return []way{
		{"off", func(*model.Config) {}},
		{"on, lanes by the kernel's hash", func(c *model.Config) { c.Spread, c.LaneByHash = model.LeastLoaded, true }},
		{"on: the least loaded of 64 ports", func(c *model.Config) { c.Spread = model.LeastLoaded }},
		{"planned, lanes by the kernel's hash", func(c *model.Config) { c.Spread, c.LaneByHash = model.Planned, true }},
		{planned, func(c *model.Config) { c.Spread = model.Planned }},
		{"… and the sender's flows dealt evenly", func(c *model.Config) { c.Spread, c.SteerEven = model.Planned, true }},
	}
}

func coreCounts() []int { return []int{2, 4, 8, 16, 32, 64} }

// seeds is how many random keys and hashes a figure is the mean of.
const seeds = 5

// summary is the mean of some runs.
type summary struct {
	gbps                 float64
	sender, receiver     float64 // share of their cores that works
	use                  [2][]float64
	busiest              map[string]float64
	p50, p99             time.Duration
	lost                 float64
	txLane, rxLane, nicQ float64
}

// average runs c with several seeds.
func average(c model.Config) (summary, error) {
	s := summary{busiest: map[string]float64{}}
	for i := range 2 {
		s.use[i] = make([]float64, len(model.AllUses()))
	}
	for seed := range uint64(seeds) {
		c.Seed = seed + 1
		r, err := model.Run(c)
		if err != nil {
			return s, fmt.Errorf("modelling %d cores: %w", c.Cores, err)
		}
		s.gbps += r.BitsPerSecond / 1e9 / seeds
		s.lost += r.LostShare / seeds
		s.p50 += r.LatencyP50 / seeds
		s.p99 += r.LatencyP99 / seeds
		for _, b := range r.Busiest {
			s.busiest[b.Resource] += b.Share / seeds
		}
		for end := range 2 {
			for use, share := range r.Use[end] {
				s.use[end][use] += share / seeds
			}
		}
	}
	s.sender, s.receiver = s.busiest[model.ResourceSender], s.busiest[model.ResourceReceiver]
	s.txLane, s.rxLane, s.nicQ = s.busiest[model.ResourceTxLane], s.busiest[model.ResourceRxLane], s.busiest[model.ResourceQueue]
	return s, nil
}

// bottleneck is the busiest resource.
func (s *summary) bottleneck() (name string, share float64) {
	for n, x := range s.busiest {
		if x > share || x == share && n < name {
			name, share = n, x
		}
	}
	return name, share
}
