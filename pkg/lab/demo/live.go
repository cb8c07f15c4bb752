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

// Live shows what goes on: on a terminal one line that changes, elsewhere a line per second. Its methods are called by one
// goroutine at a time.
type Live struct {
	Out      io.Writer
	Quiet    bool // show nothing
	Terminal bool // Out is one that understands cursor control
	Style    term.Style
	title    string // of the run, may be empty
}

// say announces a step.
func (l *Live) say(format string, args ...any) {
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

// clear removes the line that changes.
func (l *Live) clear() {
	if l.Terminal && !l.Quiet {
		fmt.Fprint(l.Out, "\r\x1b[K")
	}
}

// phase returns what to call with the progress of a run of that kind and length.
func (l *Live) phase(kind traffic.Kind, length time.Duration) func(traffic.Progress) {
	var last traffic.Progress
	return func(p traffic.Progress) {
		if !l.Terminal && p.Elapsed-last.Elapsed < 950*time.Millisecond {
			return
		}
		l.line(strings.TrimLeft(fmt.Sprintf("%-10s  ", l.title), " ") + phaseLine(kind, length, last, p, l.Terminal))
		last = p
	}
}

// phaseLine is the state of a run, with rates since the last line.
func phaseLine(kind traffic.Kind, length time.Duration, last, now traffic.Progress, bar bool) string {
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
