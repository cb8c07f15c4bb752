// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/traffic"
)

const liveBarWidth = 12

// demoLive shows what goes on: on a terminal one line that changes, elsewhere a line per second, with JSON nothing.
// Its methods are called by one goroutine at a time.
type demoLive struct {
	out   io.Writer
	quiet bool
	tty   bool
	style demoStyle
	title string // of the run, may be empty
}

func newDemoLive(out io.Writer, quiet bool) *demoLive {
	tty := isTerminal(out)
	return &demoLive{out: out, quiet: quiet, tty: tty, style: demoStyle{color: colorMode(tty)}}
}

// say announces a step.
func (l *demoLive) say(format string, args ...any) {
	l.line(fmt.Sprintf(format, args...) + " ...")
}

func (l *demoLive) line(text string) {
	switch {
	case l.quiet:
	case l.tty:
		fmt.Fprintf(l.out, "\r%s\x1b[K", text)
	default:
		fmt.Fprintln(l.out, text)
	}
}

// clear removes the line that changes.
func (l *demoLive) clear() {
	if l.tty && !l.quiet {
		fmt.Fprint(l.out, "\r\x1b[K")
	}
}

// phase returns what to call with the progress of a run of that kind and length.
func (l *demoLive) phase(kind traffic.Kind, length time.Duration) func(traffic.Progress) {
	var last traffic.Progress
	return func(p traffic.Progress) {
		if !l.tty && p.Elapsed-last.Elapsed < 950*time.Millisecond {
			return
		}
		l.line(strings.TrimLeft(fmt.Sprintf("%-10s  ", l.title), " ") + phaseLine(kind, length, last, p, l.tty))
		last = p
	}
}

// phaseLine is the state of a run, with rates since the last line.
func phaseLine(kind traffic.Kind, length time.Duration, last, now traffic.Progress, bar bool) string {
	seconds := max((now.Elapsed - last.Elapsed).Seconds(), 1e-3)
	var b strings.Builder
	fmt.Fprintf(&b, "%s ", strings.ToUpper(string(kind)))
	if bar {
		b.WriteString(barOf(now.Elapsed.Seconds()/length.Seconds(), liveBarWidth, "░"))
	}
	fmt.Fprintf(&b, " %4.1f/%.1f s  %s", min(now.Elapsed, length).Seconds(), length.Seconds(),
		bitRate(float64(now.Received.Bytes-last.Received.Bytes)*8/seconds))
	if kind == traffic.UDP {
		fmt.Fprintf(&b, "  %s  %d reordered", packetRate(float64(now.Received.Packets-last.Received.Packets)/seconds),
			now.Received.Reordered)
	}
	return b.String()
}

// barOf draws a share of width cells.
func barOf(share float64, width int, empty string) string {
	n := int(min(max(share, 0), 1)*float64(width) + 0.5)
	return strings.Repeat("█", n) + strings.Repeat(empty, width-n)
}

// fineBar draws a share of width cells in eighths of a cell: some of one for all that is more than nothing.
func fineBar(share float64, width int) string {
	eighths := int(min(max(share, 0), 1)*float64(width)*8 + 0.5)
	if share > 0 {
		eighths = max(eighths, 1)
	}
	bar := strings.Repeat("█", eighths/8)
	if part := eighths % 8; part > 0 {
		bar += string(rune(0x2590 - part)) // from ▏, one eighth, to ▉
	}
	return bar + strings.Repeat(" ", width-(eighths+7)/8)
}

// shortCount prints n in at most 7 columns.
func shortCount(n uint64) string {
	if n < 1_000_000 {
		return thousands(n)
	}
	v, unit := float64(n)/1e6, "M"
	for _, next := range []string{"G", "T", "P", "E"} {
		if v >= 1000 {
			v, unit = v/1000, next
		}
	}
	return fmt.Sprintf("%.*f %s", 2-min(len(fmt.Sprint(int(v)))-1, 2), v, unit)
}

// bitRate prints bits per second with three digits.
func bitRate(v float64) string { return withUnit(v, "bit/s") }

// packetRate prints packets per second.
func packetRate(v float64) string {
	if v < 1000 {
		return fmt.Sprintf("%.0f packets/s", v)
	}
	return fmt.Sprintf("%.0f kpps", v/1000)
}

func withUnit(v float64, unit string) string {
	for _, p := range []struct {
		factor float64
		prefix string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= p.factor {
			return fmt.Sprintf("%.2f %s%s", v/p.factor, p.prefix, unit)
		}
	}
	return fmt.Sprintf("%.0f %s", v, unit)
}

// thousands prints n with separators.
func thousands(n uint64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
