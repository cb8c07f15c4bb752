// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// chart is a picture of horizontal bars, one of each set for every label, with their figures beside them. Colours are mid-tones
// on no background, so that it reads as well on a light page as on a dark one.
type chart struct {
	title, note, unit, command string
	labels                     []string
	sets                       []barSet
}

// barSet is one colour of bars.
type barSet struct {
	name   string    // in the legend, unless it is empty
	values []float64 // for each label; 0, negative and absurd values have no bar
}

// Pixels, and the mean advance of a sans-serif glyph in em: there is no font to ask.
const (
	chartWidth  = 760
	chartMargin = 20
	chartText   = 13
	barHeight   = 18
	barStep     = barHeight + 3
	groupGap    = 12
	chartTicks  = 6
	glyphWidth  = 0.56
	lineStep    = chartText * 1.35
)

// shows tells whether a value has a bar.
func shows(v float64) bool { return v > 1e-6 && v < 1e12 }

func (c *chart) empty() bool {
	for _, s := range c.sets {
		for _, v := range s.values {
			if shows(v) {
				return false
			}
		}
	}
	return true
}

// svg draws the chart. The same figures give the same bytes.
func (c *chart) svg() []byte {
	d := &drawing{y: chartMargin / 2}
	d.paragraph(c.title, `font-size="17" font-weight="600"`, 17)
	d.paragraph(c.note, "", chartText)
	d.legend(c.sets)
	d.bars(c)
	d.paragraph("$ "+c.command, `font-size="11" font-family="ui-monospace, Menlo, Consolas, monospace" opacity="0.8"`, 12)
	head := &drawing{}
	fmt.Fprintf(&head.out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %[1]d %.0[2]f" role="img" `+
		`font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif" font-size="%d" fill="#76808c">`+
		"\n<title>", chartWidth, d.y+chartMargin, chartText)
	head.escape(c.title)
	head.out.WriteString("</title>\n")
	head.out.Write(d.out.Bytes())
	head.out.WriteString("</svg>\n")
	return head.out.Bytes()
}

// Bars draws a chart for other programs, as Plots does. It has one bar for each label and each name.
// values are by name, then by label. The chart is nil if no value has a bar.
func Bars(title, note, unit, command string, labels, names []string, values [][]float64) []byte {
	c := chart{title: title, note: note, unit: unit, command: command, labels: labels}
	for i, name := range names {
		c.sets = append(c.sets, barSet{name, values[i]})
	}
	if c.empty() {
		return nil
	}
	return c.svg()
}

// drawing collects elements from top to bottom.
type drawing struct {
	out bytes.Buffer
	y   float64 // where the next thing begins
}

// escape never fails: a Buffer takes all.
func (d *drawing) escape(s string) { _ = xml.EscapeText(&d.out, []byte(s)) }

func (d *drawing) text(x, y float64, attributes, s string) {
	fmt.Fprintf(&d.out, `<text x="%.1f" y="%.1f" %s>`, x, y, attributes)
	d.escape(s)
	d.out.WriteString("</text>\n")
}

func (d *drawing) rect(x, y, width, height float64, set int) {
	// After Okabe and Ito (2008), in mid-tones: told apart by colour-blind readers too.
	colours := [...]string{"#3b8ad9", "#e08a1e", "#1fa37f", "#b56fc9", "#d95f4e", "#8a8f3c", "#6f7c8a", "#c9659a"}
	fmt.Fprintf(&d.out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"2\" fill=\"%s\"/>\n",
		x, y, width, height, colours[set%len(colours)])
}

// paragraph writes lines below each other, wrapped at spaces.
func (d *drawing) paragraph(s, attributes string, size float64) {
	line := ""
	for _, word := range strings.Fields(s) {
		if line != "" && textWidth(line+" "+word)*size/chartText > chartWidth-2*chartMargin {
			d.y += size * 1.35
			d.text(chartMargin, d.y, attributes, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	d.y += size * 1.35
	d.text(chartMargin, d.y, attributes, line)
}

func textWidth(s string) float64 { return float64(utf8.RuneCountInString(s)) * chartText * glyphWidth }

// legend writes the names that there are, each behind its colour.
func (d *drawing) legend(sets []barSet) {
	x, y := float64(chartMargin), d.y+chartText*1.7
	for i, s := range sets {
		if s.name == "" {
			continue
		}
		d.rect(x, y-10, 16, 11, i)
		d.text(x+24, y, "", s.name)
		x += 40 + textWidth(s.name)
		d.y = y
	}
}

// bars draws the grid and all bars.
func (d *drawing) bars(c *chart) {
	names, figures, most := 0.0, 0.0, 0.0
	for _, l := range c.labels {
		names = max(names, textWidth(l))
	}
	for _, s := range c.sets {
		for _, v := range s.values {
			if shows(v) {
				most, figures = max(most, v), max(figures, textWidth(threeDigits(v)))
			}
		}
	}
	step := roundStep(most / chartTicks)
	from, top := chartMargin+names+10, d.y+chartText
	steps := int(math.Ceil(most/step - 1e-9))
	pixels := (chartWidth - chartMargin - figures - 8 - from) / (float64(steps) * step)
	group := float64(len(c.sets)*barStep + groupGap)
	bottom := top + group*float64(len(c.labels))
	for i := range steps + 1 {
		v := float64(i) * step
		x := from + v*pixels
		fmt.Fprintf(&d.out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1[1]f\" y2=\"%.1[3]f\" stroke=\"#8b949e\" stroke-opacity=\"0.3\"/>\n", x, top, bottom)
		d.text(x, bottom+lineStep, `text-anchor="middle"`, strconv.FormatFloat(v, 'g', 4, 64))
	}
	for i, label := range c.labels {
		y := top + group*float64(i) + groupGap/2
		d.text(from-10, y+(group-groupGap)/2+4, `text-anchor="end"`, label)
		for j, s := range c.sets {
			if v := s.values[i]; shows(v) {
				d.rect(from, y, v*pixels, barHeight, j)
				d.text(from+v*pixels+5, y+barHeight-4.5, "", threeDigits(v))
			}
			y += barStep
		}
	}
	d.y = bottom + 2*lineStep
	d.text((chartWidth+from)/2, d.y, `text-anchor="middle" font-weight="600"`, c.unit)
	d.y += chartText
}

// roundStep is the smallest of 1, 2 and 5 times a power of ten that is not below v.
func roundStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= v*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}
