// SPDX-License-Identifier: Apache-2.0

package plot

import (
	"math"
	"slices"
	"testing"
)

func TestScaleHasRoundTicksThatCoverAllValues(t *testing.T) {
	for _, c := range []struct {
		name   string
		axis   Axis
		values []float64
		want   []float64
	}{
		{"from zero", Axis{}, []float64{3.3, 4.1}, []float64{0, 1, 2, 3, 4, 5}},
		{"on a tick", Axis{}, []float64{50}, []float64{0, 10, 20, 30, 40, 50}},
		{"small", Axis{}, []float64{0.0031}, []float64{0, 0.001, 0.002, 0.003, 0.004}},
		{"below zero", Axis{}, []float64{-12, 30}, []float64{-20, -10, 0, 10, 20, 30}},
		{"nothing", Axis{}, nil, []float64{0, 0.2, 0.4, 0.6, 0.8, 1}},
		{"only zero", Axis{}, []float64{0, 0}, []float64{0, 0.2, 0.4, 0.6, 0.8, 1}},
		{"powers of two", Axis{Log: true}, []float64{1, 64}, []float64{1, 2, 4, 8, 16, 32, 64}},
		{"between powers", Axis{Log: true}, []float64{0, 3, 5}, []float64{2, 4, 8}},
		{"powers of ten", Axis{Log: true}, []float64{1, 1e5}, []float64{1, 10, 100, 1000, 1e4, 1e5}},
		{"one value", Axis{Log: true}, []float64{1}, []float64{1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScale(c.axis, c.values, 5)
			same := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b)) }
			if !slices.EqualFunc(s.ticks, c.want, same) {
				t.Errorf("ticks %v, want %v", s.ticks, c.want)
			}
		})
	}
}

func TestScaleNeverHasManyTicks(t *testing.T) {
	for _, log := range []bool{false, true} {
		for e := -99.0; e < 99; e += 1.7 {
			for _, v := range []float64{1, 2.4, 9.99} {
				s := newScale(Axis{Log: log}, []float64{v * math.Pow(10, e), 3}, 6)
				if n := len(s.ticks); n < 2 || n > 12 {
					t.Errorf("%v of 10^%v: %d ticks", v, e, n)
				}
			}
		}
	}
}

func TestNumberHasThreeDigits(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1: "1", 2.3456: "2.35", 0.012345: "0.0123", 999.9: "1000", 1234.5: "1234", 9990: "9990", 9999: "10k", 10000: "10k",
		123456: "123k", 1.5e6: "1.5M", 2.22e9: "2.22G", 3e12: "3T", -4.567: "-4.57", 0.3000000001: "0.3", 1e-7: "1e-07",
		1e20: "1e+08T",
	} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestWrapBreaksAtSpaces(t *testing.T) {
	got := wrap("one two  three averyverylongword x", 8)
	if want := []string{"one two", "three", "averyverylongword", "x"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
