// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

const (
	pageMargin = 24.0
	titleSize  = 17.0
	textSize   = 13.0
	smallSize  = 11.0
	leading    = 1.4
	glyphWidth = 0.56 // mean width of a letter, relative to the font size
	// maxUncrowded is the maximum number of nodes with horizontal names.
	maxUncrowded = 14
	// maxListedFindings is the maximum number of findings in a drawing.
	maxListedFindings = 10
)

// style follows the reader's preference of light or dark. Colours of links have contrast on both.
const style = `<style>
svg { color-scheme: light dark; --page: #ffffff; --ink: #24292f; --faint: #656d76; --plain: #57606a; --failed: #d95f4e; --warning: #e08a1e; }
@media (prefers-color-scheme: dark) { svg { --page: #0d1117; --ink: #e6edf3; --faint: #8d96a0; --plain: #adbac7; } }
text { fill: var(--ink); }
.faint { fill: var(--faint); }
.page { fill: var(--page); }
.node { stroke: var(--page); stroke-width: 2; fill: var(--plain); }
.failed { fill: var(--failed); }
.warning { fill: var(--warning); }
.out { fill: var(--page); stroke: var(--plain); stroke-dasharray: 3 2; }
.out.failed { stroke: var(--failed); }
.out.warning { stroke: var(--warning); }
.link { fill: none; stroke-linecap: butt; }
.link:hover { stroke-width: 5; stroke-opacity: 1; }
</style>
`

// drawing is a drawing in progress.
type drawing struct {
	bytes.Buffer
	m          *Mesh
	places     map[string]place
	isolated   map[string]bool // nodes without any tunnel
	radius     float64
	nodeRadius float64 // a node's radius
	crowded    bool
	domain     string // common end of all names, which is left out
	width      float64
	centreX    float64 // of the circle
	centreY    float64 // of the circle
	y          float64 // of the next line of text
}

// place is a node's position on the circle.
type place struct{ x, y, angle float64 }

// WriteSVG writes the graph as a self-contained SVG.
func (m *Mesh) WriteSVG(out io.Writer) error {
	p := newDrawing(m)
	p.header()
	p.layout()
	p.links()
	p.nodes()
	p.findings()
	var b bytes.Buffer
	height := p.y + pageMargin
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%s" height="%s" viewBox="0 0 %s %s" role="img" `+
		`font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif" font-size="%s">`+"\n",
		coordinate(p.width), coordinate(height), coordinate(p.width), coordinate(height), coordinate(textSize))
	b.WriteString("<title>" + escape(m.title()) + "</title>\n" + style)
	b.WriteString(`<rect class="page" width="100%" height="100%"/>` + "\n")
	b.Write(p.Bytes())
	b.WriteString("</svg>\n")
	_, err := out.Write(b.Bytes())
	return err
}

func newDrawing(m *Mesh) *drawing {
	p := &drawing{m: m, places: map[string]place{}, isolated: m.isolatedNodes(), crowded: len(m.Nodes) > maxUncrowded, domain: commonDomain(m.Nodes), radius: 190, nodeRadius: 11, y: pageMargin}
	if p.crowded { // names are rays around the circle, which must have room for as many lines
		p.radius, p.nodeRadius = max(270, float64(len(m.Nodes))*smallSize*1.5/(2*math.Pi)), 6
	}
	label := 0.0
	for i := range m.Nodes {
		label = max(label, p.labelWidth(&m.Nodes[i]))
	}
	p.width = max(2*(p.radius+label+p.nodeRadius+pageMargin+10), 720)
	p.centreX = p.width / 2
	return p
}

// labelWidth returns an upper bound for the width of the text beside a node.
func (p *drawing) labelWidth(n *Node) float64 {
	widest := textWidth(p.name(n.Name), textSize)
	if p.crowded {
		return textWidth(p.name(n.Name), smallSize)
	}
	for _, line := range n.captionLines() {
		widest = max(widest, textWidth(line, smallSize))
	}
	return widest
}

func textWidth(text string, size float64) float64 {
	return float64(len([]rune(text))) * size * glyphWidth
}

// name returns a node's name without the common domain, truncated.
func (p *drawing) name(name string) string { return truncate(strings.TrimSuffix(name, p.domain), 28) }

// commonDomain returns the common end of all names, from a dot on.
func commonDomain(nodes []Node) string {
	if len(nodes) < 2 {
		return ""
	}
	_, domain, found := strings.Cut(nodes[0].Name, ".")
	if !found {
		return ""
	}
	for i := range nodes {
		for !strings.HasSuffix(nodes[i].Name, "."+domain) {
			if _, domain, found = strings.Cut(domain, "."); !found {
				return ""
			}
		}
	}
	return "." + domain
}

// text writes a text with its baseline at y.
func (p *drawing) text(x, y float64, attributes, text string) {
	fmt.Fprintf(p, `<text x="%s" y="%s"%s>%s</text>`+"\n", coordinate(x), coordinate(y), attributes, escape(text))
}

// line writes a line of the page.
func (p *drawing) line(size float64, attributes, text string) {
	p.y += size * leading
	p.text(pageMargin, p.y, fmt.Sprintf(` font-size="%s"%s`, coordinate(size), attributes), text)
}

// paragraph writes lines that fit the page.
func (p *drawing) paragraph(size float64, attributes, text string) {
	for _, line := range wrap(text, int((p.width-2*pageMargin)/size/glyphWidth)) {
		p.line(size, attributes, line)
	}
}

// wrap breaks a text between words. A word that is too long gets a line of its own.
func wrap(text string, most int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) > most:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

// header writes the title and the legend.
func (p *drawing) header() {
	p.y -= titleSize * 0.6
	p.paragraph(titleSize, ` font-weight="600"`, p.m.title())
	p.line(smallSize, ` class="faint"`, p.m.Time.UTC().Format(time.RFC3339)+p.domainNote())
	p.y += textSize * 0.5
	counts, x, hidden := p.m.Summary().Links, pageMargin, 0
	for i := range p.m.Links {
		if p.hidden(&p.m.Links[i]) {
			hidden++
		}
	}
	p.y += textSize * leading
	for _, k := range Kinds() {
		text := fmt.Sprintf("%s: %d", k, counts[k])
		if k == NoTunnel && hidden > 0 {
			text += fmt.Sprintf(" (%d of isolated nodes, not drawn)", hidden)
		}
		space := 40 + textWidth(text, textSize) + 16
		if x > pageMargin && x+space > p.width-pageMargin {
			x = pageMargin
			p.y += textSize * 1.6
		}
		s := k.stroke()
		fmt.Fprintf(p, `<path class="link" d="M%s %sh32" stroke="%s" stroke-width="3"%s/>`+"\n",
			coordinate(x), coordinate(p.y-textSize*0.35), s.colour, s.dashes())
		p.text(x+40, p.y, "", text)
		x += space
	}
}

func (p *drawing) domainNote() string {
	if p.domain == "" {
		return ""
	}
	return ", names without " + sanitize(p.domain)
}

func (s stroke) dashes() string {
	if s.dash == "" {
		return ""
	}
	return ` stroke-dasharray="` + s.dash + `"`
}

// layout computes the nodes' positions.
func (p *drawing) layout() {
	beyond := p.nodeRadius + 2*textSize*leading // a name above or below
	if p.crowded {
		beyond = 0
		for i := range p.m.Nodes {
			beyond = max(beyond, p.labelWidth(&p.m.Nodes[i])+p.nodeRadius+8)
		}
	}
	p.centreY = p.y + 20 + beyond + p.radius
	p.y = p.centreY + p.radius + beyond + 16
	for i := range p.m.Nodes {
		angle := 2*math.Pi*float64(i)/float64(len(p.m.Nodes)) - math.Pi/2
		p.places[p.m.Nodes[i].Name] = place{p.centreX + p.radius*math.Cos(angle), p.centreY + p.radius*math.Sin(angle), angle}
	}
}

// links draws all links, the worst kind on top.
func (p *drawing) links() {
	for _, k := range Kinds() {
		width, opacity := 2.2, 0.85
		switch bad := k == StaleHandshake || k == NoTunnel; {
		case p.crowded && k == SpreadBothWays:
			width, opacity = 1, max(0.1, min(0.5, 7/float64(len(p.m.Nodes))))
		case p.crowded && !bad:
			width, opacity = 1, max(0.25, min(0.6, 20/float64(len(p.m.Nodes))))
		case p.crowded:
			width, opacity = 1.4, 0.9
		}
		s := k.stroke()
		fmt.Fprintf(p, `<g stroke="%s" stroke-width="%s" stroke-opacity="%s"%s>`+"\n", s.colour, coordinate(width), coordinate(opacity), s.dashes())
		for i := range p.m.Links {
			if l := &p.m.Links[i]; l.Kind == k && !p.hidden(l) {
				p.link(l, s)
			}
		}
		p.WriteString("</g>\n")
	}
}

// hidden reports whether a link is left out. In a crowded drawing, the links of one node without a tunnel would dominate.
func (p *drawing) hidden(l *Link) bool { return p.crowded && (p.isolated[l.A] || p.isolated[l.B]) }

// isolatedNodes returns the nodes that could have tunnels but have none.
func (m *Mesh) isolatedNodes() map[string]bool {
	alone := map[string]bool{}
	for i := range m.Links {
		for _, end := range []string{m.Links[i].A, m.Links[i].B} {
			before, seen := alone[end]
			alone[end] = (before || !seen) && m.Links[i].Kind == NoTunnel
		}
	}
	return alone
}

// link draws a curve that bends towards the centre, clear of the neighbours' names.
func (p *drawing) link(l *Link, s stroke) {
	a, z := p.places[l.A], p.places[l.B]
	const bend = 0.22
	x, y := (a.x+z.x)/2, (a.y+z.y)/2
	x, y = x+(p.centreX-x)*bend, y+(p.centreY-y)*bend
	fmt.Fprintf(p, `<path class="link" d="M%s %sQ%s %s %s %s"><title>%s</title></path>`+"\n",
		coordinate(a.x), coordinate(a.y), coordinate(x), coordinate(y), coordinate(z.x), coordinate(z.y), escape(l.title()))
	if l.Kind == SpreadOneWay && !p.crowded {
		if l.BToA.Spreads == Yes {
			a, z = z, a
		}
		p.arrow(a, place{x: x, y: y}, z, s)
	}
}

// arrow draws an arrow head in the middle of a curve, towards z.
func (p *drawing) arrow(a, bend, z place, s stroke) {
	x, y := a.x/4+bend.x/2+z.x/4, a.y/4+bend.y/2+z.y/4
	fmt.Fprintf(p, `<path d="M-7 -6L8 0L-7 6z" fill="%s" stroke="none" transform="translate(%s %s) rotate(%s)"/>`+"\n",
		s.colour, coordinate(x), coordinate(y), coordinate(math.Atan2(z.y-a.y, z.x-a.x)*180/math.Pi))
}

func (p *drawing) nodes() {
	worst := p.m.worstSeverities()
	for i := range p.m.Nodes {
		n := &p.m.Nodes[i]
		at := p.places[n.Name]
		class := "node"
		if v := worst[n.Name]; v != "" {
			class += " " + string(v)
		}
		if n.OptOut || n.Reported.Mode == "" {
			class += " out"
		}
		fmt.Fprintf(p, `<circle class="%s" cx="%s" cy="%s" r="%s"><title>%s</title></circle>`+"\n", class, coordinate(at.x), coordinate(at.y),
			coordinate(p.nodeRadius), escape(strings.Join(append([]string{n.Name}, n.captionLines()...), ", ")))
		if p.crowded {
			p.radialLabel(n, at)
		} else {
			p.label(n, at)
		}
	}
}

// radialLabel writes a name outwards from the circle.
func (p *drawing) radialLabel(n *Node, at place) {
	turn, anchor, x := at.angle*180/math.Pi, "start", p.nodeRadius+6
	if math.Cos(at.angle) < -1e-9 { // upright on the left side, too
		turn, anchor, x = turn+180, "end", -x
	}
	fmt.Fprintf(p, `<text font-size="%s" text-anchor="%s" transform="translate(%s %s) rotate(%s)" x="%s" dy="0.35em">%s</text>`+"\n",
		coordinate(smallSize), anchor, coordinate(at.x), coordinate(at.y), coordinate(turn), coordinate(x), escape(p.name(n.Name)))
}

// label writes a node's name and caption beside it.
func (p *drawing) label(n *Node, at place) {
	lines := n.captionLines()
	anchor, x, y := "start", at.x+p.nodeRadius+8, at.y+textSize*0.35-float64(len(lines))*smallSize*leading/2
	switch c, s := math.Cos(at.angle), math.Sin(at.angle); {
	case math.Abs(c) < 0.2 && s < 0:
		lines = []string{strings.Join(lines, ", ")}
		anchor, x, y = "middle", at.x, at.y-p.nodeRadius-8-smallSize*leading
	case math.Abs(c) < 0.2:
		lines = []string{strings.Join(lines, ", ")}
		anchor, x, y = "middle", at.x, at.y+p.nodeRadius+6+textSize
	case c < 0:
		anchor, x = "end", at.x-p.nodeRadius-8
	}
	p.text(x, y, ` font-weight="600" text-anchor="`+anchor+`"`, p.name(n.Name))
	for _, line := range lines {
		y += smallSize * leading
		p.text(x, y, fmt.Sprintf(` class="faint" font-size="%s" text-anchor="%s"`, coordinate(smallSize), anchor), line)
	}
}

// findings lists the worst findings.
func (p *drawing) findings() {
	if len(p.m.Nodes) > 0 && !p.m.hasLinks() {
		p.paragraph(textSize, "", fmt.Sprintf("No links: there are more than %d nodes.", MaxLinked))
	}
	for i, f := range p.m.Findings {
		if i == maxListedFindings {
			p.line(textSize, ` class="faint"`, fmt.Sprintf("and %d more", len(p.m.Findings)-maxListedFindings))
			break
		}
		text := f.Found
		if names := joinSome(f.Nodes, 3); names != "" {
			text = names + ": " + text
		}
		fmt.Fprintf(p, `<circle class="%s" cx="%s" cy="%s" r="4"/>`+"\n", f.Severity, coordinate(pageMargin+4), coordinate(p.y+textSize*(leading-0.35)))
		for _, line := range wrap(truncate(text, 300), int((p.width-2*pageMargin-16)/textSize/glyphWidth)) {
			p.y += textSize * leading
			p.text(pageMargin+16, p.y, "", line)
		}
	}
	p.paragraph(textSize, ` class="faint"`, p.m.Summary().Verdict())
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(sanitize(text))) // a Builder returns no errors
	return b.String()
}

// coordinate formats a number with at most two decimals: smaller fractions are invisible.
func coordinate(v float64) string {
	text := strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64)
	if text == "-0" {
		return "0"
	}
	return text
}
