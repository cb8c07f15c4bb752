// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestQuantileIsTheNearestRank(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for n := 1; n < 60; n++ {
		v := make([]float64, n)
		for i := range v {
			v[i] = float64(rng.IntN(20))
		}
		slices.Sort(v)
		for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 1} {
			if got, want := quantile(v, q), slowQuantile(v, q); got != want {
				t.Fatalf("quantile(%v, %v) = %v, want %v", v, q, got, want)
			}
		}
	}
	if quantile(nil, 0.5) != 0 {
		t.Error("quantile of nothing")
	}
}

// slowQuantile is the definition: the smallest value that at least a share q of all does not exceed.
func slowQuantile(v []float64, q float64) float64 {
	for _, x := range v {
		count := 0
		for _, y := range v {
			if y <= x {
				count++
			}
		}
		if float64(count) >= q*float64(len(v)) {
			return x
		}
	}
	return v[len(v)-1]
}

func TestMeanIsTheArithmeticMean(t *testing.T) {
	for _, c := range []struct {
		v    []float64
		mean float64
	}{
		{nil, 0},
		{[]float64{3}, 3},
		{[]float64{10, 1, 1}, 4},
	} {
		if mean(c.v) != c.mean {
			t.Errorf("%v: %v", c.v, mean(c.v))
		}
	}
}

func TestStepUpStopsAtTheRateThatFailsTwice(t *testing.T) {
	rates := []float64{10, 20, 30, 40}
	for _, c := range []struct {
		name string
		loss map[float64][]float64 // of each try at a rate; none means 0
		sent float64               // at most
		want float64
	}{
		{"nothing fails", nil, 1000, 40},
		{"fails at 30", map[float64][]float64{30: {2, 1}}, 1000, 20},
		{"one unlucky moment", map[float64][]float64{20: {5, 0.9}, 40: {3, 3}}, 1000, 30},
		{"fails at once", map[float64][]float64{10: {50, 50}}, 1000, 0},
		{"a generator that cannot", nil, 25, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			tries := map[float64]int{}
			s, err := stepUp(rates, func(kpps float64) (sent, loss float64, err error) {
				n := tries[kpps]
				tries[kpps]++
				if n < len(c.loss[kpps]) {
					loss = c.loss[kpps][n]
				}
				return min(kpps, c.sent), loss, nil
			})
			if err != nil || s.Value != c.want {
				t.Errorf("%v, %v; want %v", s, err, c.want)
			}
		})
	}
	broken := errors.New("broken")
	if _, err := stepUp(rates, func(float64) (float64, float64, error) { return 0, 0, broken }); !errors.Is(err, broken) {
		t.Errorf("err = %v", err)
	}
}

func TestRTTSampleCountsLostPings(t *testing.T) {
	ms := time.Millisecond
	s, err := rttSample([]time.Duration{3 * ms, 1 * ms, 2 * ms}, 4)
	if err != nil || s.Value != 2 || s.More["p50_ms"] != 2 || s.More["max_ms"] != 3 || s.More["loss_percent"] != 25 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := rttSample(nil, 4); err == nil {
		t.Error("no answers are no round trip time")
	}
}
