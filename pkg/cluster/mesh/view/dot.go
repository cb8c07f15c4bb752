// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// WriteDOT writes the graph for Graphviz.
func (m *Mesh) WriteDOT(out io.Writer) error {
	var b bytes.Buffer
	b.WriteString("graph ropewalk {\n")
	fmt.Fprintf(&b, "  graph [layout=circo, bgcolor=transparent, labelloc=t, fontname=\"sans-serif\", label=%s];\n", quote(m.title()))
	b.WriteString("  node [shape=box, style=rounded, fontname=\"sans-serif\", fontsize=11];\n")
	b.WriteString("  edge [fontname=\"sans-serif\", fontsize=9];\n")
	worst := m.worstSeverities()
	for i := range m.Nodes {
		n := &m.Nodes[i]
		fmt.Fprintf(&b, "  %s [label=%s, color=%s, fontcolor=%s];\n", quote(n.Name), quote(strings.Join(append([]string{n.Name}, n.captionLines()...), "\n")),
			quote(nodeColour(worst[n.Name])), quote(nodeColour(worst[n.Name])))
	}
	for i := range m.Links {
		l := &m.Links[i]
		a, z, direction := l.A, l.B, ""
		if l.Kind == SpreadOneWay {
			direction = ", dir=forward"
			if l.BToA.Spreads == Yes {
				a, z = l.B, l.A
			}
		}
		s := l.Kind.stroke()
		fmt.Fprintf(&b, "  %s -- %s [color=%s, style=%s%s, tooltip=%s];\n", quote(a), quote(z), quote(s.colour), s.dot, direction, quote(l.title()))
	}
	b.WriteString("}\n")
	_, err := out.Write(b.Bytes())
	return err
}

// quote returns a DOT string. It doubles backslashes, because Graphviz interprets \n, \N and others in labels.
func quote(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(sanitize(lines[i]))
	}
	return `"` + strings.Join(lines, `\n`) + `"`
}

// stroke is the line style of a kind of link. No two kinds differ in colour alone.
type stroke struct {
	colour string // with contrast on white and on black
	dash   string // SVG's, "" for none
	dot    string // Graphviz' style
}

func (k Kind) stroke() stroke {
	switch k {
	case SpreadBothWays:
		return stroke{"#1fa37f", "", "bold"}
	case SpreadOneWay:
		return stroke{"#3b8ad9", "12 4", "solid"}
	case Tunnel:
		return stroke{"#8b949e", "", "solid"}
	case StaleHandshake:
		return stroke{"#e08a1e", "7 5", "dashed"}
	default:
		return stroke{"#d95f4e", "2 5", "dotted"}
	}
}

func nodeColour(worst Severity) string {
	switch worst {
	case Failed:
		return "#d95f4e"
	case Warning:
		return "#e08a1e"
	default:
		return "#76808c"
	}
}

func (m *Mesh) title() string {
	if m.Name == "" {
		return m.Summary().String()
	}
	return m.Name + ", " + m.Summary().String()
}

// captionLines returns the text below a node's name.
func (n *Node) captionLines() []string {
	var lines []string
	switch {
	case n.OptOut:
		lines = append(lines, "opted out")
	case n.Origin != Whole:
		lines = append(lines, string(n.Origin))
	case n.Reported.Mode == "":
		lines = append(lines, "no agent status")
	case n.lacksKey():
		lines = append(lines, "no key")
	}
	if pods := joinSome(n.cidrs(), 1); pods != "" {
		lines = append(lines, pods)
	}
	if n.Reported.MTU != 0 {
		lines = append(lines, fmt.Sprintf("MTU %d", n.Reported.MTU))
	}
	return lines
}

// title describes a link in full, for a tooltip.
func (l *Link) title() string {
	return fmt.Sprintf("%s - %s: %s (%s there, %s back)", l.A, l.B, l.Kind, l.AToB, l.BToA)
}
