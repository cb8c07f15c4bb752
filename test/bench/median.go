// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/ropewalk/ropewalk/pkg/lab/bench"

// pair holds one figure of both implementations, measured one right after the other.
type pair struct{ ropewalk, peer float64 }

// medianRatio is the median of ropewalk's figure over the peer's, pair by pair, which a machine that gets slower and
// faster in the course of the rounds does not change. A pair in which the peer reached nothing has no ratio; false says
// that none has.
func medianRatio(pairs []pair) (float64, bool) {
	var ratios []float64
	for _, p := range pairs {
		if p.peer != 0 {
			ratios = append(ratios, p.ropewalk/p.peer)
		}
	}
	return bench.Median(ratios), len(ratios) > 0
}
