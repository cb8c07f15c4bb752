// SPDX-License-Identifier: Apache-2.0

package plot

import "fmt"

const (
	lineHeight = 300.0 // of the area within the axes
	lineTicks  = 6
)

// Line draws series over a common x axis.
func Line(c Chart, x, y Axis, series ...Series) []byte {
	return document(c, func(c *canvas) {
		var names []string
		for _, s := range series {
			names = append(names, s.Name)
		}
		c.legend(names, func(i int, x, y float64) { c.lineMark(i, series[i].Dashed, x, y) })
		l := newLines(c, x, y, series)
		l.drawGrid(c)
		for i, s := range series {
			l.drawSeries(c, i, s)
		}
		c.y = l.y.from + textSize*3.6
	})
}

// lines is the area of a line chart.
type lines struct{ x, y scale }

func newLines(c *canvas, x, y Axis, series []Series) lines {
	var xs, ys []float64
	for _, s := range series {
		for _, p := range s.Points {
			if px, py := (scale{axis: x}), (scale{axis: y}); px.shows(p.X) && py.shows(p.Y) {
				xs, ys = append(xs, p.X), append(ys, p.Y)
			}
		}
	}
	l := lines{newScale(x, xs, lineTicks+2), newScale(y, ys, lineTicks)}
	labels := 0.0
	for _, t := range l.y.ticks {
		labels = max(labels, textWidth(number(t)))
	}
	top := c.y + textSize*2.6
	l.x.from, l.x.to = margin+labels+8, width-margin-12
	l.y.from, l.y.to = top+lineHeight, top
	return l
}

func (l lines) drawGrid(c *canvas) {
	c.text(margin, l.y.to-textSize, left, `font-weight="600"`, l.y.axis.Label)
	for _, t := range l.y.ticks {
		y := l.y.at(t)
		c.add(`<line x1="%v" y1="%v" x2="%v" y2="%v" stroke="%s" stroke-opacity="0.3"/>`, l.x.from, y, l.x.to, y, gridColour)
		c.text(l.x.from-8, y+textSize*0.35, right, "", number(t))
	}
	for _, t := range l.x.ticks {
		x := l.x.at(t)
		c.add(`<line x1="%v" y1="%v" x2="%v" y2="%v" stroke="%s"/>`, x, l.y.from, x, l.y.from+5, gridColour)
		c.text(x, l.y.from+5+textSize*1.1, middle, "", number(t))
	}
	c.add(`<line x1="%v" y1="%v" x2="%v" y2="%v" stroke="%s"/>`, l.x.from, l.y.from, l.x.to, l.y.from, gridColour)
	c.text((l.x.from+l.x.to)/2, l.y.from+textSize*2.8, middle, `font-weight="600"`, l.x.axis.Label)
}

func (l lines) drawSeries(c *canvas, i int, s Series) {
	path := ""
	type pixel struct{ x, y float64 }
	var marks []pixel
	for _, p := range s.Points {
		if !l.x.shows(p.X) || !l.y.shows(p.Y) {
			continue
		}
		px := pixel{l.x.at(p.X), l.y.at(p.Y)}
		path += " " + coordinate(px.x) + "," + coordinate(px.y)
		marks = append(marks, px)
	}
	if path == "" {
		return
	}
	c.add(`<polyline points="%s" fill="none" stroke="%s" stroke-width="2.2" stroke-linejoin="round"%s/>`,
		path[1:], palette(i), dashes(s.Dashed))
	for _, m := range marks {
		c.marker(i, m.x, m.y)
	}
}

func dashes(on bool) string {
	if on {
		return ` stroke-dasharray="7 5"`
	}
	return ""
}

// lineMark is a piece of the line, for the legend.
func (c *canvas) lineMark(i int, dashed bool, x, y float64) {
	c.add(`<line x1="%v" y1="%v" x2="%v" y2="%v" stroke="%s" stroke-width="2.2"%s/>`, x, y, x+18, y, palette(i), dashes(dashed))
	c.marker(i, x+9, y)
}

// marker has a form of its own for each series, for those who do not tell the colours apart.
func (c *canvas) marker(i int, x, y float64) {
	fill := palette(i)
	switch i % 4 {
	case 0:
		c.add(`<circle cx="%v" cy="%v" r="3.5" fill="%s"/>`, x, y, fill)
	case 1:
		c.add(`<rect x="%v" y="%v" width="6.6" height="6.6" fill="%s"/>`, x-3.3, y-3.3, fill)
	default:
		r := 4.6
		points := [][2]float64{{x, y - r}, {x + r, y}, {x, y + r}, {x - r, y}}
		if i%4 == 3 {
			points = [][2]float64{{x, y - r}, {x + r, y + r*0.8}, {x - r, y + r*0.8}}
		}
		list := ""
		for _, p := range points {
			list += fmt.Sprintf(" %s,%s", coordinate(p[0]), coordinate(p[1]))
		}
		c.add(`<polygon points="%s" fill="%s"/>`, list[1:], fill)
	}
}
