// SPDX-License-Identifier: Apache-2.0

package plot

import "math"

// maxLogTicks is how many powers of two an axis may have before it takes powers of ten.
const maxLogTicks = 11

// scale maps values to pixels.
type scale struct {
	axis     Axis
	min, max float64
	ticks    []float64
	from, to float64 // pixels of min and max
}

// newScale covers all values that the axis can show; wanted is about how many ticks it should have.
func newScale(axis Axis, values []float64, wanted int) scale {
	s := scale{axis: axis, min: math.Inf(1), max: math.Inf(-1)}
	for _, v := range values {
		if s.shows(v) {
			s.min, s.max = min(s.min, v), max(s.max, v)
		}
	}
	if s.min > s.max {
		s.min, s.max = 1, 1 // nothing to show
	}
	if axis.Log {
		s.logTicks()
	} else {
		s.linearTicks(wanted)
	}
	return s
}

// shows tells whether a value has a place on the axis. Beyond that bound, sums and powers would overflow.
func (s *scale) shows(v float64) bool {
	const bound = 1e100
	if s.axis.Log {
		return v > 1/bound && v < bound
	}
	return v > -bound && v < bound // false for NaN
}

// linearTicks takes round steps from 0 until the last value is covered.
func (s *scale) linearTicks(wanted int) {
	s.min, s.max = min(s.min, 0), max(s.max, 0)
	if s.min == s.max {
		s.max = 1
	}
	step := roundStep((s.max - s.min) / float64(wanted))
	first, last := math.Floor(s.min/step+1e-9), math.Ceil(s.max/step-1e-9)
	last = max(last, first+1)
	for i := first; i <= last; i++ {
		s.ticks = append(s.ticks, i*step)
	}
	s.min, s.max = first*step, last*step
}

// roundStep is the smallest of 1, 2 and 5 times a power of ten that is not below v.
func roundStep(v float64) float64 {
	if v < 1e-90 {
		return 1e-90
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= v*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}

func (s *scale) logTicks() {
	base := 2.0
	if math.Log2(s.max/s.min) > maxLogTicks-1 {
		base = 10
	}
	logarithm := func(v float64) float64 { return math.Log2(v) / math.Log2(base) }
	first, last := math.Floor(logarithm(s.min)+1e-9), math.Ceil(logarithm(s.max)-1e-9)
	if first == last {
		last++
	}
	stride := math.Ceil((last - first) / (maxLogTicks - 1))
	last = first + stride*math.Ceil((last-first)/stride)
	for e := first; e <= last; e += stride {
		s.ticks = append(s.ticks, math.Pow(base, e))
	}
	s.min, s.max = math.Pow(base, first), math.Pow(base, last)
}

// at is the pixel of a value.
func (s *scale) at(v float64) float64 {
	share := (v - s.min) / (s.max - s.min)
	if s.axis.Log {
		share = math.Log2(v/s.min) / math.Log2(s.max/s.min)
	}
	return s.from + share*(s.to-s.from)
}
