// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"
)

// maxLaneRows is per side.
const maxLaneRows = 16

// demoStyle turns text into its coloured form, or leaves it.
type demoStyle struct{ color bool }

func (s demoStyle) bold(text string) string  { return s.wrap("1", text) }
func (s demoStyle) good(text string) string  { return s.wrap("32", text) }
func (s demoStyle) bad(text string) string   { return s.wrap("31;1", text) }
func (s demoStyle) faint(text string) string { return s.wrap("2", text) }
func (s demoStyle) bar(text string) string   { return s.wrap("36", text) }

func (s demoStyle) wrap(code, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// render is the report for people, at most 80 columns wide.
func (r *demoReport) render(s demoStyle) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  left ═══ cable, %d queues ═══ right\n\n", s.bold("ropewalk demo"), r.QueueCount)
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
func (r *demoReport) cells(cell func(*demoRun) string) (cells []string) {
	for i := range r.Runs {
		cells = append(cells, cell(&r.Runs[i]))
	}
	return cells
}

func plain(text string) string { return text }

// renderTraffic is the head of the picture: what the tunnel carried in each run.
func (r *demoReport) renderTraffic(b *strings.Builder, s demoStyle) {
	if l := r.Ping.Latency; l != nil {
		row(b, "round trip", fmt.Sprintf("%s when idle, 99th percentile %s",
			l.P50.Round(time.Microsecond), l.P99.Round(time.Microsecond)))
	}
	row(b, "load", fmt.Sprintf("%d TCP streams over IPv4, then %d of UDP over IPv6", r.Streams, r.Streams))
	b.WriteByte('\n')
	row(b, "", r.cells(func(run *demoRun) string { return column(run.Spread, s.bold) })...)
	row(b, "TCP", r.cells(func(run *demoRun) string { return column(bitRate(run.TCP.BitsPerSecond), plain) })...)
	row(b, "UDP", r.cells(func(run *demoRun) string {
		u := &run.UDP
		return column(fmt.Sprintf("%s, %s lost", bitRate(u.BitsPerSecond), percent(u.LostPackets, u.SentPackets)), plain)
	})...)
	row(b, "UDP order", r.cells(func(run *demoRun) string {
		return column(thousands(run.UDP.Reordered)+" reordered", s.order(run.UDP.Reordered))
	})...)
	row(b, "source ports", r.cells(func(run *demoRun) string { return column(fmt.Sprint(run.SourcePorts), plain) })...)
}

// order is how to show that so many packets were reordered.
func (s demoStyle) order(reordered uint64) func(string) string {
	if reordered > 0 {
		return s.bad
	}
	return s.good
}

// renderQueues draws the picture: what share of the packets each receive queue got.
func (r *demoReport) renderQueues(b *strings.Builder, s demoStyle) {
	most := 0.0
	for i := range r.Runs {
		sum, busiest := r.Runs[i].packets()
		most = max(most, share(busiest, sum))
	}
	if most == 0 {
		return
	}
	fmt.Fprintf(b, "\n  %s\n", s.bold("packets by receive queue of the right host"))
	for q := range r.QueueCount {
		row(b, fmt.Sprintf("%*d", rowTitleWidth-3, q), r.cells(func(run *demoRun) string { return run.queueCell(s, q, most) })...)
	}
	row(b, "busiest queue", r.cells(func(run *demoRun) string {
		sum, busiest := run.packets()
		return column(percent(busiest, sum), s.bold)
	})...)
}

// queueCell is a queue's bar, with a full one for the largest share that any has, and its packets.
func (r *demoRun) queueCell(s demoStyle, queue int, most float64) string {
	if queue >= len(r.Queues) {
		return column("", plain)
	}
	n := r.Queues[queue].Packets
	sum, _ := r.packets()
	return fmt.Sprintf("%s %7s %6s", s.bar(fineBar(share(n, sum)/most, queueBarWidth)), shortCount(n), percent(n, sum))
}

func share(n, of uint64) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

func (r *demoReport) renderLanes(b *strings.Builder, s demoStyle) {
	if r.Left == nil || r.Right == nil {
		b.WriteString("  the daemon offers no statistics by lane\n\n")
		return
	}
	fmt.Fprintf(b, "  %s\n", s.bold(fmt.Sprintf("%-10s %12s %10s %6s  %12s %10s %6s", "",
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

func (st *demoStats) renderLanes(b *strings.Builder, side string) {
	for i, l := range st.Lanes {
		if i == maxLaneRows {
			fmt.Fprintf(b, "  %-5s and %d lanes more\n", side, len(st.Lanes)-i)
			return
		}
		fmt.Fprintf(b, "  %-5s %-4d %12s %10s %6s  %12s %10s %6s\n", side, i,
			thousands(l.TxPackets), thousands(l.TxTrains), per(l.TxPackets, l.TxTrains),
			thousands(l.RxPackets), thousands(l.RxTrains), per(l.RxPackets, l.RxTrains))
	}
}

func (r *demoReport) renderChecks(b *strings.Builder, s demoStyle) {
	for _, c := range r.Checks {
		mark := s.good("✓")
		if !c.OK {
			mark = s.bad("✗")
		}
		fmt.Fprintf(b, "  %s %s\n    %s\n", mark, c.What, s.faint(c.Why))
	}
}

// per is a mean, as "-" where there is none.
func per(n, of uint64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", float64(n)/float64(of))
}

func percent(n, of uint64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(n)/float64(of))
}
