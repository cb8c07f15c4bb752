// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
)

const (
	// maxLoss is what a rate may lose and still count, in percent.
	maxLoss = 1
	// leastOffered is the share of the wanted rate that must have been sent: with less, the generator was the limit.
	leastOffered = 0.9
	ndrStretch   = 2 * time.Second
	// ndrTries is how often a rate is offered before it counts as too high: one unlucky moment should not decide.
	ndrTries = 2
)

// ndrRates are the rates that are tried, in kpps.
func ndrRates() []float64 {
	return []float64{
		10, 20, 30, 40, 60, 80, 100, 130, 160, 200, 250, 300, 400, 500, 650, 800, 1000, 1300, 1600, 2000,
	}
}

// everyThird is a coarser choice of rates.
func everyThird(rates []float64) (coarse []float64) {
	for i := 0; i < len(rates); i += 3 {
		coarse = append(coarse, rates[i])
	}
	return coarse
}

// noDrop finds the highest rate of datagrams of size bytes that loses under 1 %, by stepping up.
func noDrop(size int) func(context.Context, *Lab, time.Duration) (Sample, error) {
	return noDropAt(size, ndrRates())
}

func noDropAt(size int, rates []float64) func(context.Context, *Lab, time.Duration) (Sample, error) {
	return func(ctx context.Context, l *Lab, d time.Duration) (Sample, error) {
		offer := func(kpps float64) (sent, loss float64, err error) {
			o, err := l.Send(ctx, Flow{Config: traffic.Config{
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
			passed = loss < maxLoss && sent > leastOffered*kpps
			more["next_kpps"], more["next_sent_kpps"], more["next_loss_percent"] = kpps, sent, loss
		}
		if !passed {
			return Sample{Value: best, More: more}, nil
		}
		best = kpps
	}
	return Sample{Value: best}, nil
}
