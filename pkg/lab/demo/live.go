// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

const liveBarWidth = 12

// Live shows the progress: on a terminal in one line that it updates, otherwise in a line per second. Only one goroutine at a time
// calls its methods.
type Live struct {
	Out      io.Writer
	Quiet    bool // show nothing
	Terminal bool // Out is a terminal that supports cursor control
	Style    term.Style
	title    string // prefix of each line, may be empty
}

// step shows the step that begins.
func (l *Live) step(format string, args ...any) {
	l.line(fmt.Sprintf(format, args...) + " ...")
}

func (l *Live) line(text string) {
	switch {
	case l.Quiet:
	case l.Terminal:
		fmt.Fprintf(l.Out, "\r%s\x1b[K", text)
	default:
		fmt.Fprintln(l.Out, text)
	}
}

// clear removes the line on the terminal.
func (l *Live) clear() {
	if l.Terminal && !l.Quiet {
		fmt.Fprint(l.Out, "\r\x1b[K")
	}
}

// progress returns the progress function for a run of that kind and length.
func (l *Live) progress(kind traffic.Kind, length time.Duration) func(traffic.Progress) {
	var last traffic.Progress
	return func(p traffic.Progress) {
		if !l.Terminal && p.Elapsed-last.Elapsed < 950*time.Millisecond {
			return
		}
		l.line(strings.TrimLeft(fmt.Sprintf("%-10s  ", l.title), " ") + progressLine(kind, length, last, p, l.Terminal))
		last = p
	}
}

// progressLine returns the state of a run, with rates since the last line.
func progressLine(kind traffic.Kind, length time.Duration, last, now traffic.Progress, bar bool) string {
	seconds := max((now.Elapsed - last.Elapsed).Seconds(), 1e-3)
	var b strings.Builder
	fmt.Fprintf(&b, "%s ", strings.ToUpper(string(kind)))
	if bar {
		b.WriteString(term.Bar(now.Elapsed.Seconds()/length.Seconds(), liveBarWidth, "░"))
	}
	fmt.Fprintf(&b, " %4.1f/%.1f s  %s", min(now.Elapsed, length).Seconds(), length.Seconds(),
		term.BitRate(float64(now.Received.Bytes-last.Received.Bytes)*8/seconds))
	if kind == traffic.UDP {
		fmt.Fprintf(&b, "  %s  %d reordered", term.PacketRate(float64(now.Received.Packets-last.Received.Packets)/seconds),
			now.Received.Reordered)
	}
	return b.String()
}
