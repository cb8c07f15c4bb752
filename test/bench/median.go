// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/ropewalk/ropewalk/test/bench/result"

// pair holds one figure of ropewalk and the same figure of a peer (another implementation), measured one right after the other.
type pair struct{ ropewalk, peer float64 }

// medianRatio returns the median of the pairs' ratios, ropewalk's figure divided by the peer's. If the machine's speed changes
// between rounds, the ratio of a pair stays the same. Pairs in which the peer's figure is 0 are left out; ok is false if
// no pair remains.
func medianRatio(pairs []pair) (ratio float64, ok bool) {
	var ratios []float64
	for _, p := range pairs {
		if p.peer != 0 {
			ratios = append(ratios, p.ropewalk/p.peer)
		}
	}
	return median(ratios), len(ratios) > 0
}

// median is result.Median.
func median(v []float64) float64 { return result.Median(v) }
