// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	planBarWidth = 14
	planNumber   = 6 // columns of a load
	planColumn   = planBarWidth + 1 + planNumber
	planMaxRows  = 64
	// planEven is how much above the mean the busiest queue may be in a picture that is called good.
	planEven = 1.25
)

// render is the report for people, at most 80 columns wide but for errors.
func (r *spreadReport) render(s demoStyle) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  flows: %d, queues: %d, ports: %s\n", s.bold("spread plan"), r.Flows, len(r.Queues), r.Ports)
	fmt.Fprintf(&b, "             %s\n\n", s.faint(fmt.Sprintf("%s to %s, %s", r.From, r.To, r.source)))
	r.row(&b, "queue", func(c *spreadChoice) string { return s.bold(fmt.Sprintf("%-*s", planColumn, c.Name)) })
	most := 1e-9
	for _, c := range r.Choices {
		most = max(most, slices.Max(c.Loads))
	}
	for i, q := range r.Queues {
		if i == planMaxRows {
			fmt.Fprintf(&b, "  %7s and %d queues more\n", "", len(r.Queues)-i)
			break
		}
		r.row(&b, strconv.Itoa(q), func(c *spreadChoice) string {
			bar := s.bar(barOf(c.Loads[i]/most, planBarWidth, " "))
			return fmt.Sprintf("%s %-*s", bar, planNumber, flowCount(c.Loads[i]))
		})
	}
	b.WriteByte('\n')
	r.verdict(&b, s)
	return b.String()
}

// verdict writes the figures below the bars.
func (r *spreadReport) verdict(b *strings.Builder, s demoStyle) {
	colored := func(ratio float64, text string) string {
		text = fmt.Sprintf("%-*s", planColumn, text)
		if ratio <= planEven {
			return s.good(text)
		}
		return s.bad(text)
	}
	r.row(b, "busiest", func(c *spreadChoice) string {
		return colored(c.BusiestToMean, fmt.Sprintf("%.2f × mean", c.BusiestToMean))
	})
	r.row(b, "idle", func(c *spreadChoice) string {
		return fmt.Sprintf("%-*s", planColumn, fmt.Sprintf("%d of %d", c.Idle, len(r.Queues)))
	})
	r.row(b, "median", func(c *spreadChoice) string { return colored(c.Median, fmt.Sprintf("%.2f × mean", c.Median)) })
	fmt.Fprintf(b, "  %s\n", s.faint(fmt.Sprintf("median: of the busiest queue, over %d rounds of other flows", r.Rounds)))
	if r.NoPlan != "" {
		fmt.Fprintf(b, "\n  %s %s\n", s.bad("no plan:"), r.NoPlan)
	}
}

// row writes a title and a cell per choice.
func (r *spreadReport) row(b *strings.Builder, title string, cell func(*spreadChoice) string) {
	line := fmt.Sprintf("  %7s", title)
	for i := range r.Choices {
		line += "  " + cell(&r.Choices[i])
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}

// flowCount is a load in flows, "" for none.
func flowCount(load float64) string {
	if load == 0 {
		return ""
	}
	return strconv.FormatFloat(load, 'f', -1, 64)
}
