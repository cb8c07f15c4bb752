// SPDX-License-Identifier: Apache-2.0

package plot

import "math"

const (
	barHeight = 18.0
	barGap    = 3.0  // between the bars of a label
	groupGap  = 12.0 // between labels
	barTicks  = 6
	// maxLabelShare of the width is what the labels may take; longer ones are wrapped.
	maxLabelShare = 0.34
)

// Bars draws horizontal bars, one of each set for every label, with their figures beside them.
func Bars(c Chart, value Axis, labels []string, sets ...BarSet) []byte {
	return document(c, func(c *canvas) {
		var names []string
		for _, s := range sets {
			names = append(names, s.Name)
		}
		c.legend(names, func(i int, x, y float64) {
			c.add(`<rect x="%v" y="%v" width="16" height="11" rx="2" fill="%s"/>`, x, y-5.5, palette(i))
		})
		b := newBars(c, value, labels, sets)
		b.drawGrid(c)
		for i := range labels {
			b.drawGroup(c, i)
		}
		c.y = b.bottom + textSize*3.4
	})
}

// bars is the area of a bar chart.
type bars struct {
	value       scale
	labels      [][]string // wrapped
	sets        []BarSet
	top, bottom float64
	group       float64 // height of a label's bars
}

func newBars(c *canvas, value Axis, labels []string, sets []BarSet) *bars {
	var values []float64
	for _, s := range sets {
		for i := range labels {
			if v, ok := s.at(i); ok {
				values = append(values, v)
			}
		}
	}
	b := &bars{value: newScale(value, values, barTicks), sets: sets, top: c.y + textSize}
	room, glyphs := 0.0, int(math.Floor(width*maxLabelShare/textSize/glyphWidth))
	for _, l := range labels {
		w := wrap(l, glyphs)
		b.labels = append(b.labels, w)
		for _, line := range w {
			room = max(room, textWidth(line))
		}
	}
	figures := 0.0
	for _, v := range values {
		figures = max(figures, textWidth(number(v)))
	}
	b.value.from, b.value.to = margin+room+10, width-margin-figures-8
	b.group = max(float64(max(len(sets), 1))*(barHeight+barGap)-barGap, 0)
	for _, l := range b.labels {
		b.group = max(b.group, float64(len(l))*textSize*leading)
	}
	b.bottom = b.top + float64(len(labels))*(b.group+groupGap)
	return b
}

// at is the figure for label i, if there is one.
func (s BarSet) at(i int) (float64, bool) {
	if i >= len(s.Values) {
		return 0, false
	}
	any := scale{}
	return s.Values[i], any.shows(s.Values[i])
}

func (b *bars) drawGrid(c *canvas) {
	for _, t := range b.value.ticks {
		x := b.value.at(t)
		c.add(`<line x1="%v" y1="%v" x2="%v" y2="%v" stroke="%s" stroke-opacity="0.3"/>`, x, b.top, x, b.bottom, gridColour)
		c.text(x, b.bottom+textSize*1.2, middle, "", number(t))
	}
	c.text((b.value.from+b.value.to)/2, b.bottom+textSize*2.7, middle, `font-weight="600"`, b.value.axis.Label)
}

func (b *bars) drawGroup(c *canvas, i int) {
	y := b.top + float64(i)*(b.group+groupGap) + groupGap/2
	line := y + b.group/2 - float64(len(b.labels[i])-1)*textSize*leading/2 + textSize*0.35
	for _, text := range b.labels[i] {
		c.text(b.value.from-10, line, right, "", text)
		line += textSize * leading
	}
	y += (b.group - (float64(len(b.sets))*(barHeight+barGap) - barGap)) / 2
	for j, s := range b.sets {
		if v, ok := s.at(i); ok && b.value.shows(v) {
			b.drawBar(c, j, y, v)
		}
		y += barHeight + barGap
	}
}

func (b *bars) drawBar(c *canvas, set int, y, v float64) {
	zero := b.value.from
	if !b.value.axis.Log {
		zero = b.value.at(0)
	}
	x := b.value.at(v)
	c.add(`<rect x="%v" y="%v" width="%v" height="%v" rx="2" fill="%s"/>`,
		min(x, zero), y, max(x-zero, zero-x), barHeight, palette(set))
	c.text(max(x, zero)+5, y+barHeight*0.5+textSize*0.35, left, "", number(v))
}
