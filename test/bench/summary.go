// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"strings"
)

// nothing stands in a table where there is no figure.
const nothing = "–"

// comparison is one cell: a peer's median, and the median of the ratios of ropewalk's figure to it.
type comparison struct{ median, ratio string }

// line is one row of the table with everything that was measured for it, formatted.
type line struct {
	row
	cable, ropewalk string
	peers           []comparison
}

// summarize makes the table's lines, without those for which nobody gave a figure.
func (r *report) summarize(table []row, peers []string) []line {
	var list []line
	for _, w := range table {
		l := line{row: w, cable: r.median(rawName, w), ropewalk: r.median(ropewalkName, w)}
		empty := l.cable == nothing && l.ropewalk == nothing
		for _, p := range peers {
			c := comparison{median: r.median(p, w), ratio: nothing}
			if ratio, ok := medianRatio(r.pairs(p, w)); ok && !w.bare {
				c.ratio = fmt.Sprintf("%.2f", ratio)
			}
			l.peers = append(l.peers, c)
			empty = empty && c.median == nothing
		}
		if !empty {
			list = append(list, l)
		}
	}
	return list
}

func (r *report) median(implementation string, w row) string {
	values := r.values(implementation, w)
	if len(values) == 0 {
		return nothing
	}
	return digits(median(values))
}

// unitLabel marks the units of which less is better.
func (w row) unitLabel() string {
	if w.less {
		return w.unit + " ↓"
	}
	return w.unit
}

// digits prints about three significant digits, never an exponent.
func digits(v float64) string {
	switch abs := math.Abs(v); {
	case abs >= 100:
		return fmt.Sprintf("%.0f", v)
	case abs >= 10:
		return fmt.Sprintf("%.1f", v)
	case abs >= 0.1:
		return fmt.Sprintf("%.2f", v)
	case abs == 0:
		return "0"
	default:
		return fmt.Sprintf("%.3f", v)
	}
}

// failureLines returns a line for each test of each implementation that failed, with its last error.
func (r *report) failureLines() []string {
	type key struct{ implementation, test string }
	count, failed, reason := make(map[key]int), make(map[key]int), make(map[key]string)
	var order []key
	for _, s := range r.Samples {
		k := key{s.Implementation, s.Test}
		count[k]++
		if s.Error == "" {
			continue
		}
		if failed[k] == 0 {
			order = append(order, k)
		}
		failed[k]++
		reason[k], _, _ = strings.Cut(s.Error, "; it last wrote:")
		reason[k], _, _ = strings.Cut(reason[k], "\n")
	}
	var list []string
	for _, k := range order {
		list = append(list, fmt.Sprintf("%s, %s: no figure %d times out of %d: %s",
			k.implementation, k.test, failed[k], count[k], reason[k]))
	}
	return list
}
