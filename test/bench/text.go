// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"unicode/utf8"
)

// writeText prints the table for a terminal.
func writeText(out io.Writer, lines []line, peers []string) error {
	labels := []string{"test"}
	for _, l := range lines {
		labels = append(labels, l.test+", "+l.unitLabel())
	}
	width := 0
	for _, l := range labels {
		width = max(width, utf8.RuneCountInString(l))
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "%-*s\tcable\tropewalk\t", width, labels[0])
	for _, p := range peers {
		fmt.Fprintf(tw, "%s\tratio\t", p)
	}
	fmt.Fprintln(tw)
	for i, l := range lines {
		fmt.Fprintf(tw, "%-*s\t%s\t%s\t", width, labels[i+1], l.cable, l.ropewalk)
		for _, c := range l.peers {
			fmt.Fprintf(tw, "%s\t%s\t", c.median, c.ratio)
		}
		fmt.Fprintln(tw)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("printing the table: %w", err)
	}
	return nil
}

// liveTable prints a line for each pair as soon as it is complete.
type liveTable struct {
	out  io.Writer
	rows map[string]row // of the tests' main figures
	half sample         // of a pair that is not complete
}

func newLiveTable(out io.Writer, table []row) *liveTable {
	t := &liveTable{out: out, rows: make(map[string]row)}
	for _, w := range table {
		if w.figure == valueFigure {
			t.rows[w.test] = w
		}
	}
	return t
}

// add takes the next sample.
func (t *liveTable) add(s sample) {
	if s.Versus == rawName {
		fmt.Fprintln(t.out, t.label(s)+"  "+liveCell(s))
		return
	}
	mine, other := t.half, s
	if mine.Round != s.Round || mine.Versus != s.Versus || mine.Test != s.Test {
		t.half = s
		return
	}
	if s.Implementation == ropewalkName {
		mine, other = s, t.half
	}
	line := t.label(s) + "  " + liveCell(mine) + "  " + liveCell(other)
	v, ok := mine.Figures[valueFigure]
	if w := other.Figures[valueFigure]; ok && w != 0 && !t.rows[s.Test].bare {
		line += fmt.Sprintf("  %6.2f", v/w)
	}
	fmt.Fprintln(t.out, line)
}

func (t *liveTable) label(s sample) string {
	return fmt.Sprintf("%3d  %-9s %18s", s.Round, s.Test, t.rows[s.Test].unitLabel())
}

func liveCell(s sample) string {
	figure := "failed"
	if v, ok := s.Figures[valueFigure]; ok {
		figure = digits(v)
	}
	return fmt.Sprintf("%12s %7s", s.Implementation, figure)
}
