// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Series is one line of a figure.
type Series struct {
	// Name is shown in the legend, unless it is empty.
	Name string
	// Points are joined in their order.
	Points plotter.XYs
	// Dashed draws a dashed line, for a model or a bound.
	Dashed bool
}

// Line draws series over a common x axis, as SVG.
func Line(c Chart, x, y Axis, series ...Series) ([]byte, error) {
	p := newPlot(x, y)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, rule()
	p.Add(grid)
	var legend []entry
	for i, s := range series {
		line, points, err := plotter.NewLinePoints(s.Points)
		if err != nil {
			return nil, fmt.Errorf("drawing %q: %w", s.Name, err)
		}
		line.Color, line.Width = palette(i), 1.6
		if s.Dashed {
			line.Dashes = []vg.Length{5, 4}
		}
		points.Color, points.Radius, points.Shape = palette(i), 3, marker(i)
		p.Add(line, points)
		legend = append(legend, entry{s.Name, lineMark{line, points}})
	}
	x.scale(&p.X)
	y.scale(&p.Y)
	return c.render(p, legend, 390)
}

// lineMark is the symbol of a series in the legend: a piece of its line with its marker.
type lineMark struct {
	line   *plotter.Line
	points *plotter.Scatter
}

// Thumbnail implements plot.Thumbnailer.
func (m lineMark) Thumbnail(c *draw.Canvas) {
	m.line.Thumbnail(c)
	m.points.Thumbnail(c)
}

// marker has a shape of its own for each series, for readers who do not tell the colours apart.
func marker(i int) draw.GlyphDrawer {
	shapes := []draw.GlyphDrawer{
		draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{},
	}
	return shapes[i%len(shapes)]
}
