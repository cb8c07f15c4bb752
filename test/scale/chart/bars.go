// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"slices"
	"strconv"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// BarSet is one colour of bars.
type BarSet struct {
	// Name stands in the legend, unless it is empty.
	Name string
	// Values has a figure for each label.
	Values plotter.Values
}

const (
	barHeight = 13.5
	barGap    = 2.5
)

// Bars draws horizontal bars, one of each set for every label, with their figures beside them, as SVG.
func Bars(c Chart, value Axis, labels []string, sets ...BarSet) ([]byte, error) {
	p := newPlot(value, Axis{})
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = rule(), nil
	p.Add(grid)
	group := vg.Length(len(sets)) * (barHeight + barGap)
	var legend []entry
	for i, s := range sets {
		upwards := slices.Clone(s.Values) // the first label is at the top
		slices.Reverse(upwards)
		bars, err := plotter.NewBarChart(upwards, barHeight)
		if err != nil {
			return nil, fmt.Errorf("drawing %q: %w", s.Name, err)
		}
		bars.Horizontal, bars.Color, bars.LineStyle.Width = true, palette(i), 0
		bars.Offset = group/2 - (vg.Length(i)+0.5)*(barHeight+barGap)
		figures, err := beside(bars, upwards)
		if err != nil {
			return nil, fmt.Errorf("drawing %q: %w", s.Name, err)
		}
		p.Add(bars, figures)
		legend = append(legend, entry{s.Name, bars})
	}
	names := slices.Clone(labels)
	slices.Reverse(names)
	p.NominalY(names...)
	value.scale(&p.X)
	p.Y.Min, p.Y.Max = -0.5, float64(len(labels))-0.5
	p.Y.Padding = 16
	return c.render(p, legend, 150+vg.Length(len(labels))*(group+10))
}

// beside writes each bar's figure at its end.
func beside(bars *plotter.BarChart, values plotter.Values) (*plotter.Labels, error) {
	var at plotter.XYLabels
	for i, v := range values {
		at.XYs = append(at.XYs, plotter.XY{X: v, Y: float64(i)})
		at.Labels = append(at.Labels, strconv.FormatFloat(v, 'g', 3, 64))
	}
	labels, err := plotter.NewLabels(at)
	if err != nil {
		return nil, err
	}
	labels.Offset = vg.Point{X: 4, Y: bars.Offset}
	for i := range labels.TextStyle {
		labels.TextStyle[i] = style(textSize)
		labels.TextStyle[i].YAlign = draw.YCenter
	}
	return labels, nil
}
