// SPDX-License-Identifier: Apache-2.0

package plot

import (
	"bytes"
	"encoding/xml"
	"fmt"
)

const (
	width     = 760.0
	margin    = 20.0
	titleSize = 17.0
	textSize  = 13.0
	smallSize = 11.0
	leading   = 1.35 // of lines of text
)

// Colours that have contrast on white as well as on black.
const (
	inkColour  = "#76808c"
	gridColour = "#8b949e"
)

// palette is told apart by colour-blind readers too: after Okabe and Ito (2008), in mid-tones.
func palette(i int) string {
	colours := []string{"#3b8ad9", "#e08a1e", "#1fa37f", "#b56fc9", "#d95f4e", "#8a8f3c", "#6f7c8a", "#c9659a"}
	return colours[i%len(colours)]
}

// canvas collects the elements of a picture of a fixed width, from top to bottom.
type canvas struct {
	bytes.Buffer
	y float64 // where the next thing begins
}

// add writes one element. Its arguments are numbers made here, never a caller's text; the verb of a number is %v.
func (c *canvas) add(format string, args ...any) {
	for i, a := range args {
		if v, ok := a.(float64); ok {
			args[i] = coordinate(v)
		}
	}
	fmt.Fprintf(&c.Buffer, format+"\n", args...)
}

// anchor is where a text stands relative to its position.
type anchor string

const (
	left   anchor = "start"
	middle anchor = "middle"
	right  anchor = "end"
)

// text writes s with its baseline at y. The attributes are made here, s is anybody's.
func (c *canvas) text(x, y float64, a anchor, attributes, s string) {
	if attributes != "" {
		attributes = " " + attributes
	}
	c.WriteString(`<text x="` + coordinate(x) + `" y="` + coordinate(y) + `" text-anchor="` + string(a) + `"` + attributes + ">")
	c.escape(s)
	c.WriteString("</text>\n")
}

// escape never fails: a Buffer takes all.
func (c *canvas) escape(s string) { _ = xml.EscapeText(&c.Buffer, []byte(s)) }

// paragraph writes wrapped lines below each other.
func (c *canvas) paragraph(s string, size, glyph float64, attributes string) {
	for _, line := range wrap(s, int((width-2*margin)/size/glyph)) {
		c.y += size * leading
		c.text(margin, c.y, left, attributes, line)
	}
}

// legend writes the names that there are, each behind its mark.
func (c *canvas) legend(names []string, mark func(i int, x, y float64)) {
	x, begun := margin, false
	for i, name := range names {
		if name == "" {
			continue
		}
		space := 26 + textWidth(name) + 14
		if !begun || x+space > width-margin {
			c.y += textSize * 1.7
			x, begun = margin, true
		}
		mark(i, x, c.y-textSize*0.35)
		c.text(x+24, c.y, left, "", name)
		x += space
	}
}

// document puts what was drawn between the head and the foot.
func document(chart Chart, draw func(*canvas)) []byte {
	c := &canvas{y: margin / 2}
	c.paragraph(chart.Title, titleSize, glyphWidth, fmt.Sprintf(`font-size="%g" font-weight="600"`, titleSize))
	c.y += 2
	c.paragraph(chart.Note, textSize, glyphWidth, "")
	draw(c)
	if chart.Command != "" {
		c.y += 6
		c.paragraph("$ "+chart.Command, smallSize, monoWidth,
			fmt.Sprintf(`font-size="%g" font-family="ui-monospace, Menlo, Consolas, monospace" opacity="0.8"`, smallSize))
	}
	height := coordinate(c.y + margin)
	out := &canvas{}
	out.add(`<svg xmlns="http://www.w3.org/2000/svg" width="%v" height="%s" viewBox="0 0 %v %s" role="img" `+
		`font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif" font-size="%v" fill="%s">`,
		width, height, width, height, textSize, inkColour)
	out.WriteString("<title>")
	out.escape(chart.Title)
	out.WriteString("</title>\n")
	out.Write(c.Bytes())
	out.WriteString("</svg>\n")
	return out.Bytes()
}
