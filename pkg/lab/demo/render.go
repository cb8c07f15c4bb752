// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

// maxLaneRows is per side.
const maxLaneRows = 16

// Render is the report for people, at most 80 columns wide.
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

// The widths of the picture: what stands in front of the columns, one column, and a bar in it.
const (
	rowTitleWidth  = 16
	columnWidth    = 31
	queueBarWidth  = 16
	columnDistance = "  "
)

// row prints a line of the picture with one figure for each run. What stands in a column may have colours, so that its
// width is not that of the string.
func row(b *strings.Builder, title string, cells ...string) {
	fmt.Fprintf(b, "  %-*s%s\n", rowTitleWidth-2, title, strings.TrimRight(strings.Join(cells, columnDistance), " "))
}

// column makes a cell of text that has no colours yet.
func column(text string, paint func(string) string) string {
	return paint(fmt.Sprintf("%-*s", columnWidth, text))
}

// cells are a cell for each run.
func (r *Report) cells(cell func(*Load) string) (cells []string) {
	for i := range r.Runs {
		cells = append(cells, cell(&r.Runs[i]))
	}
	return cells
}

func plain(text string) string { return text }

// renderTraffic renders the head of the report: the tunnel's throughput in each run.
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

// renderQueues draws the picture: what share of the packets each receive queue got.
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

// queueCell is a queue's bar, with a full one for the largest share that any has, and its packets.
func (r *Load) queueCell(s term.Style, queue int, most float64) string {
	if queue >= len(r.Queues) {
		return column("", plain)
	}
	n := r.Queues[queue].Packets
	sum, _ := r.packets()
	return fmt.Sprintf("%s %7s %6s", s.Bar(term.FineBar(share(n, sum)/most, queueBarWidth)), term.Short(n), term.Percent(n, sum))
}

func share(n, of uint64) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

func (r *Report) renderLanes(b *strings.Builder, s term.Style) {
	if r.Left == nil || r.Right == nil {
		b.WriteString("  the daemon offers no statistics by lane\n\n")
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
			fmt.Fprintf(b, "  %-5s and %d lanes more\n", side, len(st.Lanes)-i)
			return
		}
		fmt.Fprintf(b, "  %-5s %-4d %12s %10s %6s  %12s %10s %6s\n", side, i,
			term.Thousands(l.TxPackets), term.Thousands(l.TxTrains), per(l.TxPackets, l.TxTrains),
			term.Thousands(l.RxPackets), term.Thousands(l.RxTrains), per(l.RxPackets, l.RxTrains))
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

// per is a mean, as "-" where there is none.
func per(n, of uint64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", float64(n)/float64(of))
}
