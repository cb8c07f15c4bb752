// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
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
	mine sample         // ropewalk's of the pair
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
	if s.Implementation == ropewalkName {
		t.mine = s
		return
	}
	w := t.rows[s.Test]
	cells := []string{fmt.Sprintf("%3d  %-9s %18s", s.Round, s.Test, w.unitLabel())}
	if s.Implementation != rawName {
		cells = append(cells, liveCell(t.mine))
	}
	cells = append(cells, liveCell(s))
	mine, ok := t.mine.Figures[valueFigure]
	if v := s.Figures[valueFigure]; ok && v != 0 && !w.bare && s.Implementation != rawName {
		cells = append(cells, fmt.Sprintf("%6.2f", mine/v))
	}
	fmt.Fprintln(t.out, strings.Join(cells, "  "))
}

func liveCell(s sample) string {
	figure := "failed"
	if v, ok := s.Figures[valueFigure]; ok {
		figure = digits(v)
	}
	return fmt.Sprintf("%12s %7s", s.Implementation, figure)
}
