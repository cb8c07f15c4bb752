// SPDX-License-Identifier: Apache-2.0

package main

import "slices"

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
	return median(ratios), len(ratios) > 0
}

// median is the middle value, or the mean of the two in the middle; 0 of nothing. It leaves v as it is.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
