// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
)

const (
	// MaxLoss is the largest loss in percent at which a rate still counts.
	MaxLoss = 1
	// leastOffered is the share of the wanted rate that must have been sent: with less, the generator was the limit.
	leastOffered = 0.9
	ndrStretch   = 2 * time.Second
	// ndrTries is how often a rate is offered before it counts as too high: one unlucky moment should not decide.
	ndrTries = 2
)

// NDRRates are the rates that NoDrop tries, in kpps.
func NDRRates() []float64 {
	return []float64{
		10, 20, 30, 40, 60, 80, 100, 130, 160, 200, 250, 300, 400, 500, 650, 800, 1000, 1300, 1600, 2000,
	}
}

// NoDrop finds the highest of the rates, in kpps, at which under 1 % of datagrams of size bytes is lost, by stepping up. There are
// up to twenty stretches of traffic, of two seconds at most.
func NoDrop(size int, rates []float64) Measure {
	return func(ctx context.Context, p Path, d time.Duration) (Sample, error) {
		offer := func(kpps float64) (sent, loss float64, err error) {
			o, err := p.Send(ctx, Flow{Config: traffic.Config{
				Kind: traffic.UDP, Size: size, Duration: min(d, ndrStretch), BitsPerSecond: kpps * 1e3 * float64(size) * 8,
			}})
			return float64(o.SentPackets) / 1e3 / min(d, ndrStretch).Seconds(), o.LossPercent(), err
		}
		return stepUp(rates, offer)
	}
}

// stepUp offers one rate after the other until one fails twice. offer returns the rate sent and the loss in percent.
func stepUp(rates []float64, offer func(kpps float64) (sent, loss float64, err error)) (Sample, error) {
	var best float64
	more := map[string]float64{}
	for _, kpps := range rates {
		passed := false
		for try := 0; try < ndrTries && !passed; try++ {
			sent, loss, err := offer(kpps)
			if err != nil {
				return Sample{}, err
			}
			passed = loss < MaxLoss && sent > leastOffered*kpps
			more["next_kpps"], more["next_sent_kpps"], more["next_loss_percent"] = kpps, sent, loss
		}
		if !passed {
			return Sample{Value: best, More: more}, nil
		}
		best = kpps
	}
	return Sample{Value: best}, nil
}
