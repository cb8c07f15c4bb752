// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/ropewalk/ropewalk/test/bench/result"
	"github.com/ropewalk/ropewalk/test/scale/model"
)

// predictSeeds is the number of random keys and hashes over which predictions are averaged.
const predictSeeds = 3

// predictDuration is long enough for thousands of trains.
const predictDuration = 10 * time.Millisecond

// predict simulates all configurations of these targets.
func predict(costs *costFile, check *checkFile, list []target, progress io.Writer) (*result.Predictions, error) {
	worst, err := modelError(costs, check)
	if err != nil {
		return nil, err
	}
	f := &result.Predictions{Command: "make predictions", Costs: costs.Machine, ModelError: math.Round(worst*1000) / 1000}
	for _, t := range list {
		for _, direction := range result.Directions() {
			for _, mtu := range t.MTUs {
				for _, spread := range t.Spread {
					fmt.Fprintf(progress, "%s, %s, MTU %d, spread %s\n", t.Name, direction, mtu, spread)
					for _, cores := range t.Cores {
						p := result.Prediction{Target: t.Name, Direction: direction, MTU: mtu, Spread: spread, Cores: cores}
						if err := simulate(&p, costs, &t, f.ModelError); err != nil {
							return nil, err
						}
						f.Predictions = append(f.Predictions, p)
					}
				}
			}
		}
	}
	return f, nil
}

// simulate fills in the throughput for all three cases of costs.
func simulate(p *result.Prediction, costs *costFile, t *target, modelError float64) error {
	limit := t.limit(p.MTU, p.Spread)
	var gbps [3]float64
	for _, at := range []costCase{cheap, expected, dear} {
		c := t.config(costs, p.Cores, p.MTU, p.Direction, p.Spread, at)
		c.Elephants, c.Window = manyFlows, flowTrains(manyFlows)*c.Train.Bytes
		c.Warmup += settleTime / time.Duration(p.Cores)
		c.Duration = predictDuration
		n := 1 // the limits are far from each other
		if at == expected {
			n = predictSeeds
		}
		s, err := averageOf(c, n)
		if err != nil {
			return err
		}
		gbps[at] = s.gbps
		if at == expected {
			p.Limit, _ = s.bottleneck()
			if s.gbps > limit {
				p.Limit = model.ResourceLink
			}
		}
	}
	round := func(x float64) float64 { return math.Round(10*min(x, limit)) / 10 }
	p.Low, p.Expected, p.High = round(gbps[dear]*(1-modelError)), round(gbps[expected]), round(gbps[cheap]*(1+modelError))
	return nil
}

// modelError returns the largest difference between a measured throughput and its prediction, as a share.
func modelError(costs *costFile, check *checkFile) (worst float64, err error) {
	for _, s := range scenarios() {
		predicted, err := s.predict(costs)
		if err != nil {
			return 0, err
		}
		var measured, left []float64
		for _, o := range check.Scenes[s.Name] {
			measured, left = append(measured, o.Gbps), append(left, predicted.Gbps*s.availableShare(o.Others))
		}
		if len(measured) == 0 {
			return 0, fmt.Errorf("the check has no scenario %q", s.Name)
		}
		worst = max(worst, math.Abs(median(measured)/median(left)-1))
	}
	return worst, nil
}
