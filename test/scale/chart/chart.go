// SPDX-License-Identifier: Apache-2.0

// Package chart draws the figures of docs/dev/model.md with gonum/plot: lines over cores, and bars. Colours are mid-tones on no
// background, so that a figure reads as well on a light page as on a dark one.
package chart

import (
	"bytes"
	"fmt"
	"html"
	"image/color"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Chart is the text around a figure. Long texts are wrapped.
type Chart struct {
	// Title names the subject. Note, below it, tells the meaning of the figures.
	Title, Note string
	// Command made the figures; it stands at the foot.
	Command string
}

// Axis is one axis. A linear one begins at 0, or below where a value does.
type Axis struct {
	// Label names the quantity with its unit.
	Label string
	// Log spaces values by their ratio, by powers of two. They are positive.
	Log bool
}

// Lengths are in points; one is 4/3 CSS pixels.
const (
	pageWidth = 570
	margin    = 15
	titleSize = 12.75
	textSize  = 9.75
	smallSize = 8.25
	leading   = 1.35
	// spare is the factor by which a text may be wider in a viewer's font, such as DejaVu Sans.
	spare = 1.15
)

// ink and rule have contrast on white as well as on black.
func ink() color.Color  { return color.NRGBA{0x76, 0x80, 0x8c, 0xff} }
func rule() color.Color { return color.NRGBA{0x8b, 0x94, 0x9e, 0xa0} }

// palette is told apart by colour-blind readers too: after Okabe and Ito (2008), in mid-tones.
func palette(i int) color.Color {
	colours := []color.NRGBA{
		{0x3b, 0x8a, 0xd9, 0xff},
		{0xe0, 0x8a, 0x1e, 0xff},
		{0x1f, 0xa3, 0x7f, 0xff},
		{0xb5, 0x6f, 0xc9, 0xff},
		{0xd9, 0x5f, 0x4e, 0xff},
		{0x8a, 0x8f, 0x3c, 0xff},
		{0x6f, 0x7c, 0x8a, 0xff},
		{0xc9, 0x65, 0x9a, 0xff},
	}
	return colours[i%len(colours)]
}

func style(size vg.Length) text.Style {
	return text.Style{
		Color: ink(), Font: font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}, Handler: plot.DefaultTextHandler,
		YAlign: draw.YTop,
	}
}

func bold(s text.Style) text.Style {
	s.Font.Weight = 2 // bold, in golang.org/x/image/font
	return s
}

func mono(s text.Style) text.Style {
	s.Font.Variant = "Mono"
	return s
}

// newPlot returns a plot without a background in the colours of the page.
func newPlot(x, y Axis) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	for axis, label := range map[*plot.Axis]string{&p.X: x.Label, &p.Y: y.Label} {
		axis.Label.Text = label
		axis.Label.TextStyle = bold(style(textSize))
		axis.Label.TextStyle.XAlign, axis.Label.TextStyle.YAlign = draw.XCenter, draw.YBottom
		tick := style(textSize)
		tick.XAlign, tick.YAlign = axis.Tick.Label.XAlign, axis.Tick.Label.YAlign
		axis.Tick.Label = tick
		axis.Color, axis.Tick.Color = ink(), ink()
	}
	return p
}

// scale fits an axis to its values.
func (a Axis) scale(axis *plot.Axis) {
	if !a.Log {
		axis.Min, axis.Tick.Marker = min(axis.Min, 0), labelled{}
		return
	}
	axis.Scale = plot.LogScale{}
	first, last := math.Floor(math.Log2(axis.Min)+1e-9), math.Ceil(math.Log2(axis.Max)-1e-9)
	var ticks plot.ConstantTicks
	for e := first; e <= last; e++ {
		ticks = append(ticks, plot.Tick{Value: math.Exp2(e), Label: fmt.Sprintf("%g", math.Exp2(e))})
	}
	axis.Min, axis.Max, axis.Tick.Marker = math.Exp2(first), math.Exp2(last), ticks
}

// labelled are gonum's ticks with a label at each.
type labelled struct{}

// Ticks implements plot.Ticker.
func (labelled) Ticks(low, high float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(low, high)
	for i := range ticks {
		ticks[i].Label = strconv.FormatFloat(ticks[i].Value, 'g', 4, 64)
	}
	return ticks
}

// entry is one name of a legend.
type entry struct {
	name string
	mark plot.Thumbnailer
}

// page is drawn from top to bottom.
type page struct{ draw.Canvas }

// render puts the plot between the texts, on a page of a height.
func (c Chart) render(p *plot.Plot, legend []entry, height vg.Length) ([]byte, error) {
	svg := vgsvg.New(pageWidth, height)
	g := page{draw.Crop(draw.New(svg), margin, -margin, margin, -margin)}
	foot := mono(style(smallSize))
	foot.YAlign = draw.YBottom
	g.FillText(foot, g.Min, "$ "+c.Command)
	g.Min.Y += smallSize * 2
	g.paragraph(bold(style(titleSize)), c.Title)
	g.paragraph(style(textSize), c.Note)
	g.legend(legend)
	p.Draw(g.Canvas)
	var out bytes.Buffer
	if _, err := svg.WriteTo(&out); err != nil {
		return nil, fmt.Errorf("drawing %q: %w", c.Title, err)
	}
	return c.annotate(out.String()), nil
}

// annotate adds fonts to fall back to (Arial has the metrics of Liberation Sans), and a title for screen readers.
func (c Chart) annotate(svg string) []byte {
	return []byte(strings.NewReplacer(
		"font-family:Liberation Sans;", "font-family:Liberation Sans,Arial,sans-serif;",
		"font-family:Liberation Mono;", "font-family:Liberation Mono,monospace;",
		"<svg ", `<svg role="img" `,
		`<g transform="scale(1, -1) translate`, "<title>"+html.EscapeString(c.Title)+"</title>\n"+`<g transform="scale(1, -1) translate`,
	).Replace(svg))
}

// paragraph writes wrapped lines below each other.
func (g *page) paragraph(s text.Style, words string) {
	line := ""
	for _, word := range strings.Fields(words) {
		if longer := strings.TrimSpace(line + " " + word); line == "" || spare*s.Width(longer) <= g.Max.X-g.Min.X {
			line = longer
			continue
		}
		g.line(s, line)
		line = word
	}
	g.line(s, line)
}

func (g *page) line(s text.Style, words string) {
	g.FillText(s, vg.Point{X: g.Min.X, Y: g.Max.Y}, words)
	g.Max.Y -= s.Font.Size * leading
}

// legend writes the names that there are, each behind its mark, in as many rows as they take.
func (g *page) legend(list []entry) {
	const markWidth, gap = 16, 12
	s := style(textSize)
	row := s.Font.Size * 1.7
	x, begun := g.Min.X, false
	g.Max.Y -= 4
	for _, e := range list {
		if e.name == "" {
			continue
		}
		width := markWidth + 5 + spare*s.Width(e.name) + gap
		if !begun || x+width > g.Max.X+gap {
			if begun {
				g.Max.Y -= row
			}
			x, begun = g.Min.X, true
		}
		mark := draw.Canvas{Canvas: g.Canvas.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: x, Y: g.Max.Y - s.Font.Size - 2}, Max: vg.Point{X: x + markWidth, Y: g.Max.Y - 2},
		}}
		e.mark.Thumbnail(&mark)
		g.FillText(s, vg.Point{X: x + markWidth + 5, Y: g.Max.Y}, e.name)
		x += width
	}
	g.Max.Y -= row
}
