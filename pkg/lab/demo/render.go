// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

// maxLaneRows is the number of lanes shown per host.
const maxLaneRows = 16

// Render returns the report as text, at most 80 columns wide.
func (r *Report) Render(s term.Style) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  left ═══ cable, %d queues ═══ right\n\n", s.Bold("ropewalk demo"), r.QueueCount)
	r.renderLanes(&b, s)
	r.renderChecks(&b, s)
	b.WriteByte('\n')
	r.renderTraffic(&b, s)
	r.renderQueues(&b, s)
	return b.String()
}

// Widths of the chart: of the row titles, of a column, and of a bar in it.
const (
	rowTitleWidth  = 16
	columnWidth    = 31
	queueBarWidth  = 16
	columnDistance = "  "
)

// row prints a row of the chart with one cell per run. Cells may contain colours, so their width is not the length of the string.
func row(b *strings.Builder, title string, cells ...string) {
	fmt.Fprintf(b, "  %-*s%s\n", rowTitleWidth-2, title, strings.TrimRight(strings.Join(cells, columnDistance), " "))
}

// column pads text to a cell, and then colours it.
func column(text string, paint func(string) string) string {
	return paint(fmt.Sprintf("%-*s", columnWidth, text))
}

// cells returns a cell for each run.
func (r *Report) cells(cell func(*Load) string) (cells []string) {
	for i := range r.Runs {
		cells = append(cells, cell(&r.Runs[i]))
	}
	return cells
}

func plain(text string) string { return text }

// renderTraffic renders the throughput of the tunnel in each run.
func (r *Report) renderTraffic(b *strings.Builder, s term.Style) {
	if l := r.Ping.Latency; l != nil {
		row(b, "round trip", fmt.Sprintf("%s when idle, 99th percentile %s",
			l.P50.Round(time.Microsecond), l.P99.Round(time.Microsecond)))
	}
	row(b, "load", fmt.Sprintf("%d TCP streams over IPv4, then %d of UDP over IPv6", r.Streams, r.Streams))
	b.WriteByte('\n')
	row(b, "", r.cells(func(run *Load) string { return column(run.Spread, s.Bold) })...)
	row(b, "TCP", r.cells(func(run *Load) string { return column(term.BitRate(run.TCP.BitsPerSecond), plain) })...)
	row(b, "UDP", r.cells(func(run *Load) string {
		u := &run.UDP
		return column(fmt.Sprintf("%s, %s lost", term.BitRate(u.BitsPerSecond), term.Percent(u.LostPackets, u.SentPackets)), plain)
	})...)
	row(b, "UDP order", r.cells(func(run *Load) string {
		return column(term.Thousands(run.UDP.Reordered)+" reordered", orderStyle(s, run.UDP.Reordered))
	})...)
	row(b, "source ports", r.cells(func(run *Load) string { return column(fmt.Sprint(run.SourcePorts), plain) })...)
}

// orderStyle returns the style for a number of reordered packets.
func orderStyle(s term.Style, reordered uint64) func(string) string {
	if reordered > 0 {
		return s.Bad
	}
	return s.Good
}

// renderQueues draws the chart: the share of the packets by receive queue.
func (r *Report) renderQueues(b *strings.Builder, s term.Style) {
	most := 0.0
	for i := range r.Runs {
		sum, busiest := r.Runs[i].packets()
		most = max(most, share(busiest, sum))
	}
	if most == 0 {
		return
	}
	fmt.Fprintf(b, "\n  %s\n", s.Bold("packets by receive queue of the right host"))
	for q := range r.QueueCount {
		row(b, fmt.Sprintf("%*d", rowTitleWidth-3, q), r.cells(func(run *Load) string { return run.queueCell(s, q, most) })...)
	}
	row(b, "busiest queue", r.cells(func(run *Load) string {
		sum, busiest := run.packets()
		return column(term.Percent(busiest, sum), s.Bold)
	})...)
}

// queueCell returns the bar and the packets of a queue. fullShare is the share for which the bar is full.
func (r *Load) queueCell(s term.Style, queue int, fullShare float64) string {
	if queue >= len(r.Queues) {
		return column("", plain)
	}
	n := r.Queues[queue].Packets
	sum, _ := r.packets()
	return fmt.Sprintf("%s %7s %6s", s.Bar(term.FineBar(share(n, sum)/fullShare, queueBarWidth)), term.Short(n), term.Percent(n, sum))
}

func share(n, of uint64) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

func (r *Report) renderLanes(b *strings.Builder, s term.Style) {
	if r.Left == nil || r.Right == nil {
		b.WriteString("  the daemon has no statistics by lane\n\n")
		return
	}
	fmt.Fprintf(b, "  %s\n", s.Bold(fmt.Sprintf("%-10s %12s %10s %6s  %12s %10s %6s", "",
		"sent packets", "trains", "per", "recv packets", "trains", "per")))
	r.Left.renderLanes(b, "left")
	r.Right.renderLanes(b, "right")
	drops := append(r.Left.dropLines("left"), r.Right.dropLines("right")...)
	if len(drops) == 0 {
		drops = []string{"none"}
	}
	for i, line := range drops {
		title := "drops"
		if i > 0 {
			title = ""
		}
		fmt.Fprintf(b, "  %-6s %s\n", title, line)
	}
	b.WriteByte('\n')
}

func (st *Stats) renderLanes(b *strings.Builder, side string) {
	for i, l := range st.Lanes {
		if i == maxLaneRows {
			fmt.Fprintf(b, "  %-5s and %d more lanes\n", side, len(st.Lanes)-i)
			return
		}
		fmt.Fprintf(b, "  %-5s %-4d %12s %10s %6s  %12s %10s %6s\n", side, i,
			term.Thousands(l.TxPackets), term.Thousands(l.TxTrains), mean(l.TxPackets, l.TxTrains),
			term.Thousands(l.RxPackets), term.Thousands(l.RxTrains), mean(l.RxPackets, l.RxTrains))
	}
}

func (r *Report) renderChecks(b *strings.Builder, s term.Style) {
	for _, c := range r.Checks {
		mark := s.Good("✓")
		if !c.OK {
			mark = s.Bad("✗")
		}
		fmt.Fprintf(b, "  %s %s\n    %s\n", mark, c.What, s.Faint(c.Why))
	}
}

// mean returns n/of as text, "-" if of is 0.
func mean(n, of uint64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", float64(n)/float64(of))
}
