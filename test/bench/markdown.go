// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
)

// markdown is the documentation's table, with all that it takes to measure it again.
func (r *report) markdown(lines []line, peers []peer, what map[string]string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s: %s. Medians of %d rounds, %g s of traffic per test:\n\n    %s\n\n",
		r.Date.Format("2006-01-02"), r.Machine, r.Rounds, r.Seconds, r.Command)
	writeMarkdownTable(&b, lines, peers, what)
	b.WriteString("\nIn parentheses: ropewalk's figure over the peer's, each pair measured one right after the other, median of the\n" +
		"pairs. Where less is better (↓), a ratio below 1 is ropewalk's.")
	fmt.Fprintf(&b, "\n\nVersions: %s %s", ropewalkName, r.Versions[ropewalkName])
	for _, p := range peers {
		fmt.Fprintf(&b, ", %s %s", p.title, r.Versions[p.name])
	}
	b.WriteString(".\n")
	failures := r.failureLines()
	if len(failures) > 0 {
		b.WriteString("\n")
	}
	for _, l := range failures {
		fmt.Fprintf(&b, "- %s.\n", l)
	}
	return []byte(b.String())
}

// cableColumn is the column of the bare cable.
const cableColumn = 2

// writeMarkdownTable leaves out the bare cable where nobody measured it.
func writeMarkdownTable(b *strings.Builder, lines []line, peers []peer, what map[string]string) {
	absent := !slices.ContainsFunc(lines, func(l line) bool { return l.cable != nothing })
	put := func(cells []string) {
		if absent {
			cells = slices.Delete(cells, cableColumn, cableColumn+1)
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	head := []string{"test", "unit", "bare cable", ropewalkName}
	for _, p := range peers {
		head = append(head, p.title)
	}
	rule := slices.Repeat([]string{"---"}, len(head))
	put(head)
	put(rule)
	for _, l := range lines {
		cells := []string{"`" + l.test + "`", l.unitLabel(), l.cable, l.ropewalk}
		if l.figure == valueFigure {
			cells[0] += ": " + what[l.test]
		}
		for _, c := range l.peers {
			cells = append(cells, c.markdown())
		}
		put(cells)
	}
}

func (c comparison) markdown() string {
	if c.ratio == nothing {
		return c.median
	}
	return fmt.Sprintf("%s (**%s**)", c.median, c.ratio)
}
