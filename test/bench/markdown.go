// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// markdown is the documentation's table, with all that it takes to measure it again.
func (r *report) markdown(lines []line, peers []peer, what map[string]string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s: Linux %s, %d × %s. Medians of %d rounds, %g s of traffic per test:\n\n    %s\n\n",
		r.Date.Format("2006-01-02"), r.Machine.Kernel, r.Machine.Cores, r.Machine.CPU, r.Rounds, r.Seconds, r.Command)
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

func writeMarkdownTable(b *strings.Builder, lines []line, peers []peer, what map[string]string) {
	head := []string{"test", "unit", "bare cable", ropewalkName}
	for _, p := range peers {
		head = append(head, p.title)
	}
	writeMarkdownRow(b, head)
	b.WriteString(strings.Repeat("| --- ", len(head)) + "|\n")
	for _, l := range lines {
		cells := []string{"`" + l.test + "`", l.unitLabel(), l.cable, l.ropewalk}
		if l.figure == valueFigure {
			cells[0] += ": " + what[l.test]
		}
		for _, c := range l.peers {
			cells = append(cells, c.markdown())
		}
		writeMarkdownRow(b, cells)
	}
}

func (c comparison) markdown() string {
	if c.ratio == nothing {
		return c.median
	}
	return fmt.Sprintf("%s (**%s**)", c.median, c.ratio)
}

func writeMarkdownRow(b *strings.Builder, cells []string) {
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}
