// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"testing"

	"gonum.org/v1/plot/plotter"

	"github.com/ropewalk/ropewalk/test/golden"
)

func TestChartsMatchGoldenFiles(t *testing.T) {
	lines, err := Line(
		Chart{
			Title:   "Throughput by cores",
			Note:    "A model with the stage costs measured on two cores, in a sentence that is long enough to be wrapped into a second line. <Dashed> & bounded.",
			Command: "make scale",
		},
		Axis{Label: "Cores", Log: true}, Axis{Label: "Gbit/s", Log: true},
		Series{Name: "16 flows", Points: plotter.XYs{{X: 2, Y: 4}, {X: 4, Y: 7.7}, {X: 8, Y: 14.6}, {X: 64, Y: 26}}},
		Series{Name: "no spread, a long name that needs a row of its own in the legend of the figure", Dashed: true, Points: plotter.XYs{{X: 2, Y: 4}, {X: 64, Y: 8}}},
	)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/lines.svg", lines)
	bars, err := Bars(
		Chart{Title: "Use", Note: "Share.", Command: "make scale"}, Axis{Label: "%"}, []string{"ports by hash", "planned ports"},
		BarSet{Name: "encrypt", Values: plotter.Values{51.234, 12}}, BarSet{Name: "decrypt", Values: plotter.Values{30, 0}},
	)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/bars.svg", bars)
}

func TestBarsWithoutValuesAreAnError(t *testing.T) {
	if _, err := Bars(Chart{}, Axis{}, nil, BarSet{Name: "nothing"}); err == nil {
		t.Error("bars without values were drawn")
	}
}
