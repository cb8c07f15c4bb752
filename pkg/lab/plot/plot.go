// SPDX-License-Identifier: Apache-2.0

// Package plot draws the few charts that ropewalk shows, lines and bars, as SVG. Colours are mid-tones on no background,
// so that a chart reads as well on a light page as on a dark one. The output depends only on the arguments: the same
// figures give the same bytes. All text is escaped.
package plot

// Chart is what stands around every chart. Lines that are too long are wrapped.
type Chart struct {
	// Title names what is shown, Note says below it what it means or how it was measured.
	Title, Note string
	// Command is what made the figures; it stands at the foot, to be run again.
	Command string
}

// Axis is one axis. A linear one begins at 0, or below where a value does.
type Axis struct {
	// Label names the quantity with its unit: "Gbit/s".
	Label string
	// Log spaces values by their ratio: by powers of two, or of ten where there would be too many. Values up to 0 are left out.
	Log bool
}

// Point is one figure of a Series. One that is not finite is left out.
type Point struct{ X, Y float64 }

// Series is one line of a chart.
type Series struct {
	// Name stands in the legend, unless it is empty.
	Name string
	// Points are joined in their order.
	Points []Point
	// Dashed is for what was not measured: a model, a bound.
	Dashed bool
}

// BarSet is one colour of bars.
type BarSet struct {
	// Name stands in the legend, unless it is empty.
	Name string
	// Values has a figure for each label. One that is not finite, or missing, has no bar.
	Values []float64
}
