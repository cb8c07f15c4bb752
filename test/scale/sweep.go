// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/ropewalk/ropewalk/test/scale/model"
)

// config returns a configuration with these costs. The caller sets the numbers of cores and flows.
func (f *costFile) config() model.Config {
	return model.Config{
		Costs: f.Stages, Lines: f.Lines, Train: f.Train, Ack: f.Ack, HandOff: f.HandOff.Over + f.HandOff.Wake, HandBack: f.HandOff.Back, Wake: f.HandOff.Wake,
		Window: 3 << 20, Delay: int64(25 * time.Microsecond), ClosedLoop: true,
		Warmup: 10 * time.Millisecond, Duration: 30 * time.Millisecond, Seed: 1,
	}
}

// strategy is a way to select source ports, lanes and queues.
type strategy struct {
	name   string
	config func(c *model.Config)
}

// planned is the best strategy that ropewalk has.
const planned = "planned by the receiver"

// strategies begins with spread off. Each further one removes one hash.
func strategies() []strategy {
	return []strategy{
		{"off", func(*model.Config) {}},
		{"on, lanes by the kernel's hash", func(c *model.Config) { c.Spread, c.LaneByHash = model.LeastLoaded, true }},
		{"on: the least loaded of 64 ports", func(c *model.Config) { c.Spread = model.LeastLoaded }},
		{"planned, lanes by the kernel's hash", func(c *model.Config) { c.Spread, c.LaneByHash = model.Planned, true }},
		{planned, func(c *model.Config) { c.Spread = model.Planned }},
		{"… and the sender's flows dealt evenly", func(c *model.Config) { c.Spread, c.SteerEven = model.Planned, true }},
	}
}

func coreCounts() []int { return []int{2, 4, 8, 16, 32, 64} }

// seeds is the number of random keys and hashes over which results are averaged.
const seeds = 5

// summary is the mean of several runs.
type summary struct {
	gbps                 float64
	sender, receiver     float64 // utilization of their cores
	use                  [2][]float64
	busiest              map[string]float64
	p50, p99             time.Duration
	lost                 float64
	txLane, rxLane, nicQ float64
}

// average runs c with several seeds.
func average(c model.Config) (summary, error) { return averageOf(c, seeds) }

func averageOf(c model.Config, seeds int) (summary, error) {
	s := summary{busiest: map[string]float64{}}
	for i := range 2 {
		s.use[i] = make([]float64, len(model.AllUses()))
	}
	n := float64(seeds)
	for seed := range uint64(seeds) {
		c.Seed = seed + 1
		r, err := model.Run(c)
		if err != nil {
			return s, fmt.Errorf("modelling %d cores: %w", c.Cores, err)
		}
		s.gbps += r.BitsPerSecond / 1e9 / n
		s.lost += r.LostShare / n
		s.p50 += r.LatencyP50 / time.Duration(seeds)
		s.p99 += r.LatencyP99 / time.Duration(seeds)
		for _, b := range r.Busiest {
			s.busiest[b.Resource] += b.Share / n
		}
		for end := range 2 {
			for use, share := range r.Use[end] {
				s.use[end][use] += share / n
			}
		}
	}
	s.sender, s.receiver = s.busiest[model.ResourceSender], s.busiest[model.ResourceReceiver]
	s.txLane, s.rxLane, s.nicQ = s.busiest[model.ResourceTxLane], s.busiest[model.ResourceRxLane], s.busiest[model.ResourceQueue]
	return s, nil
}

// bottleneck returns the resource with the highest utilization.
func (s *summary) bottleneck() (name string, share float64) {
	for n, x := range s.busiest {
		if x > share || x == share && n < name {
			name, share = n, x
		}
	}
	return name, share
}
