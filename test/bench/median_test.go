// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
)

func TestMedianRatioUsesPairedRounds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		pairs []pair
		want  float64
		none  bool
	}{
		{name: "no pairs", none: true},
		{name: "one", pairs: []pair{{3, 2}}, want: 1.5},
		{name: "even", pairs: []pair{{1, 1}, {3, 1}}, want: 2},
		{name: "a machine that halves its speed", pairs: []pair{{8, 4}, {4, 2}, {2, 1}}, want: 2},
		{name: "one round disturbed", pairs: []pair{{4, 2}, {1, 4}, {4, 2}}, want: 2},
		{name: "a peer that reached nothing once", pairs: []pair{{80, 0}, {80, 40}}, want: 2},
		{name: "a peer that never reached anything", pairs: []pair{{80, 0}}, none: true},
		{name: "nothing of ropewalk", pairs: []pair{{0, 4}}, want: 0},
	} {
		got, ok := medianRatio(tt.pairs)
		if got != tt.want || ok == tt.none {
			t.Errorf("%s: got %v, %t", tt.name, got, ok)
		}
	}
}

func TestMedianLeavesItsArgument(t *testing.T) {
	for _, c := range []struct {
		v    []float64
		want float64
	}{
		{nil, 0},
		{[]float64{3}, 3},
		{[]float64{9, 1}, 5},
		{[]float64{10, 1, 1}, 1},
		{[]float64{4, 1, 3, 20}, 3.5},
	} {
		before := slices.Clone(c.v)
		if got := median(c.v); got != c.want || !slices.Equal(before, c.v) {
			t.Errorf("%v: median %v, want %v", before, got, c.want)
		}
	}
}
