// SPDX-License-Identifier: Apache-2.0

package portplan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

const (
	planBarWidth = 14
	planNumber   = 6 // columns of a load
	planColumn   = planBarWidth + 1 + planNumber
	planMaxRows  = 64
	// evenRatio is the largest ratio of busiest queue to mean that counts as even.
	evenRatio = 1.25
)

// Render formats the report as text, at most 80 columns wide except for errors.
func (r *Report) Render(s term.Style) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  flows: %d, queues: %d, ports: %s\n", s.Bold("spread plan"), r.Flows, len(r.Queues), r.Ports)
	fmt.Fprintf(&b, "             %s\n\n", s.Faint(fmt.Sprintf("%s to %s, %s", r.From, r.To, r.source)))
	r.row(&b, "queue", func(c *Strategy) string { return s.Bold(fmt.Sprintf("%-*s", planColumn, c.Name)) })
	most := 1e-9
	for _, c := range r.Strategies {
		most = max(most, slices.Max(c.Loads))
	}
	for i, q := range r.Queues {
		if i == planMaxRows {
			fmt.Fprintf(&b, "  %7s and %d more queues\n", "", len(r.Queues)-i)
			break
		}
		r.row(&b, strconv.Itoa(q), func(c *Strategy) string {
			bar := s.Bar(term.Bar(c.Loads[i]/most, planBarWidth, " "))
			return fmt.Sprintf("%s %-*s", bar, planNumber, flowCount(c.Loads[i]))
		})
	}
	b.WriteByte('\n')
	r.summary(&b, s)
	return b.String()
}

// summary writes the numbers below the bars.
func (r *Report) summary(b *strings.Builder, s term.Style) {
	colored := func(ratio float64, text string) string {
		text = fmt.Sprintf("%-*s", planColumn, text)
		if ratio <= evenRatio {
			return s.Good(text)
		}
		return s.Bad(text)
	}
	r.row(b, "busiest", func(c *Strategy) string {
		return colored(c.BusiestToMean, fmt.Sprintf("%.2f × mean", c.BusiestToMean))
	})
	r.row(b, "idle", func(c *Strategy) string {
		return fmt.Sprintf("%-*s", planColumn, fmt.Sprintf("%d of %d", c.Idle, len(r.Queues)))
	})
	r.row(b, "median", func(c *Strategy) string { return colored(c.Median, fmt.Sprintf("%.2f × mean", c.Median)) })
	fmt.Fprintf(b, "  %s\n", s.Faint(fmt.Sprintf("median: busiest queue over %d rounds with different flows", r.Rounds)))
	if r.PlanError != "" {
		fmt.Fprintf(b, "\n  %s %s\n", s.Bad("no plan:"), r.PlanError)
	}
}

// row writes a title and one cell per strategy.
func (r *Report) row(b *strings.Builder, title string, cell func(*Strategy) string) {
	line := fmt.Sprintf("  %7s", title)
	for i := range r.Strategies {
		line += "  " + cell(&r.Strategies[i])
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}

// flowCount formats a load in flows, "" for none.
func flowCount(load float64) string {
	if load == 0 {
		return ""
	}
	return strconv.FormatFloat(load, 'f', -1, 64)
}
