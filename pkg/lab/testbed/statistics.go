// SPDX-License-Identifier: Apache-2.0

package testbed

import "math"

// mean is the arithmetic mean; 0 of nothing.
func mean(v []float64) float64 {
	var sum float64
	for _, x := range v {
		sum += x
	}
	return sum / float64(max(len(v), 1))
}

// quantile is the smallest value that a share q of the sorted values does not exceed (nearest rank); 0 of nothing.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}
