// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netlab"
)

const (
	queueBarWidth = 40
	maxLaneRows   = 16 // per side
)

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
	r.renderTraffic(&b, s)
	r.renderLanes(&b, s)
	renderQueues(&b, s, "packets by receive queue of the right host", r.Queues)
	r.renderChecks(&b, s)
	return b.String()
}

func (r *demoReport) renderTraffic(b *strings.Builder, s demoStyle) {
	row := func(name, figure, rest string) {
		fmt.Fprintf(b, "  %-14s %s  %s\n", name, s.bold(fmt.Sprintf("%14s", figure)), s.faint(rest))
	}
	row("TCP over IPv4", bitRate(r.TCP.BitsPerSecond), fmt.Sprintf("%d streams, %.1f s", r.Streams, r.TCP.Seconds))
	row("UDP over IPv6", bitRate(r.UDP.BitsPerSecond), fmt.Sprintf("%d streams, %.1f s, %s, %s lost", r.Streams,
		r.UDP.Seconds, packetRate(r.UDP.PacketsPerSecond), percent(r.UDP.LostPackets, r.UDP.SentPackets)))
	row("UDP order", fmt.Sprintf("%d reordered", r.UDP.Reordered),
		fmt.Sprintf("of %s datagrams, %d duplicated", thousands(r.UDP.Packets), r.UDP.Duplicated))
	if l := r.Ping.Latency; l != nil {
		row("round trip", l.P50.Round(time.Microsecond).String(), fmt.Sprintf("median when idle, 99th percentile %s",
			l.P99.Round(time.Microsecond)))
	}
	b.WriteByte('\n')
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

// renderQueues draws one picture of a cable's queues.
func renderQueues(b *strings.Builder, s demoStyle, title string, queues []netlab.QueueCount) {
	if len(queues) == 0 {
		return
	}
	var sum, most uint64
	for _, q := range queues {
		sum += q.Packets
		most = max(most, q.Packets)
	}
	fmt.Fprintf(b, "  %s\n", s.bold(title))
	for i, q := range queues {
		bar := barOf(float64(q.Packets)/float64(max(most, 1)), queueBarWidth, " ")
		fmt.Fprintf(b, "  %2d %s %11s %6s\n", i, s.bar(bar), thousands(q.Packets), percent(q.Packets, sum))
	}
	b.WriteByte('\n')
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
