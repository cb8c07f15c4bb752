// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"strings"
)

// View is what of a frame is drawn.
type View uint8

// The views. The zero View is Overview.
const (
	Overview View = iota
	Peers
	Lanes
	Queues // and cores
	Drops
	Help
)

// Views are the names of those with figures.
func Views() []string { return []string{"overview", "peers", "lanes", "queues", "drops"} }

// String returns the name.
func (v View) String() string { return append(Views(), "help")[min(v, Help)] }

// Next is the view after v, around and around, without Help.
func (v View) Next() View { return (v + 1) % Help }

// Options say how a frame is drawn.
type Options struct {
	Width, Height int // in columns and lines; 0 lines are as many as it takes
	View          View
	Order         Order  // that the frame was sorted by, to be named
	Scroll        int    // lines left out at the top, below the head; in Overview none are
	Paused        bool   // is said
	Keys          bool   // are explained in the last line
	Note          string // is shown in place of the keys: an error, for example
	Color         bool   // with SGR sequences; else there are no control characters but line feeds
	ASCII         bool   // bars without block characters
}

// Render draws a frame. No line is wider than asked for, and there are never more; lines end with a line feed, the last
// one too.
func Render(f *Frame, o Options) string {
	r := renderer{Options: o, frame: f}
	lines := r.screen()
	var b strings.Builder
	for _, l := range lines {
		l.cut(o.Width).paint(&b, o.Color)
		b.WriteByte('\n')
	}
	return b.String()
}

// MaxScroll is the largest Options.Scroll that makes a difference.
func MaxScroll(f *Frame, o Options) int {
	r := renderer{Options: o, frame: f}
	if o.View == Overview || o.Height == 0 {
		return 0
	}
	return max(len(r.body(0))-r.room(len(r.head())), 0)
}

// renderer draws one frame.
type renderer struct {
	Options
	frame *Frame
}

// screen is the head, as much of the body as there is room for, and the foot.
func (r *renderer) screen() []line {
	head := r.head()
	if r.Height == 0 {
		return append(head, r.body(0)...)
	}
	room := r.room(len(head))
	body := r.body(room)
	if r.View != Overview {
		body = scrolled(body, min(max(r.Scroll, 0), max(len(body)-room, 0)))
	}
	lines := append(head, body[:min(room, len(body))]...)
	if r.footed() {
		for len(lines) < r.Height-1 {
			lines = append(lines, nil)
		}
		lines = append(lines[:r.Height-1], r.foot())
	}
	return lines[:min(len(lines), r.Height)]
}

// scrolled leaves lines out but for the titles of the first table, which follow an empty line.
func scrolled(body []line, from int) []line {
	if from == 0 || len(body) < 2 {
		return body
	}
	return append([]line{body[1]}, body[min(from+1, len(body)):]...)
}

func (r *renderer) footed() bool { return r.Keys || r.Note != "" }

// room is how many lines are left for the body.
func (r *renderer) room(head int) int {
	room := r.Height - head
	if r.footed() {
		room--
	}
	return max(room, 0)
}

// body is all of a view; the overview is made to fit height lines, unless that is 0.
func (r *renderer) body(height int) []line {
	var tables []*table
	switch r.View {
	case Overview:
		return r.overview(height)
	case Peers:
		tables = []*table{r.peers(r.Width >= wholeKeyWidth)}
	case Lanes:
		tables = []*table{r.lanes(), r.runSizes()}
	case Queues:
		tables = []*table{r.queues(), r.cores()}
	case Drops:
		tables = []*table{r.drops()}
	default:
		return help()
	}
	var lines []line
	for _, t := range tables {
		lines = append(append(lines, nil), r.lines(t)...)
	}
	return lines
}

// wholeKeyWidth is from how many columns on there is room for whole keys, of 44 characters.
const wholeKeyWidth = 110

// lines of a table, or what there is instead of an empty one.
func (r *renderer) lines(t *table) []line {
	if len(t.rows) == 0 {
		return []line{textLine(dim, t.empty)}
	}
	return t.lines(r.Width, 0)
}

// head says what is shown and adds it up.
func (r *renderer) head() []line {
	f := r.frame
	state := span{"up", good}
	if !f.Up {
		state = span{"down", bad}
	}
	title := line{
		{clean(f.Interface), bold},
		{"  ", plain},
		state,
		{fmt.Sprintf("  %s  %s", plural(len(f.Lanes)-1, "lane"), plural(f.PeerCount, "peer")), plain},
		{"  " + clean(strings.Join(f.Features, " ")), dim},
	}
	return []line{
		r.right(title, r.status()),
		r.direction("received", &f.Rx), r.direction("sent", &f.Tx), r.balance(),
	}
}

// status is what stands in the upper right corner.
func (r *renderer) status() span {
	what := r.View.String()
	if r.Order != ByDefault {
		what += " by " + r.Order.String()
	}
	if r.Paused {
		return span{what + "  PAUSED", reverse}
	}
	return span{fmt.Sprintf("%s  %.1f s", what, r.frame.Seconds), dim}
}

// right puts s at the right end, over the line's end if need be.
func (r *renderer) right(l line, s span) line {
	n := line{s}.width()
	if r.Width < n+columnGap {
		return l
	}
	l = l.cut(r.Width - n - columnGap)
	return append(l, span{strings.Repeat(" ", r.Width-n-l.width()), plain}, s)
}

func (r *renderer) direction(name string, f *Flow) line {
	text := fmt.Sprintf("%-9s %9s %8s pps", name, bits(f.ByteRate), count(f.PacketRate))
	if f.PerTrain > 0 {
		text += fmt.Sprintf("  %s packets per train", average(f.PerTrain))
	}
	if f.PerRun > 0 {
		text += fmt.Sprintf(", %s messages per run", average(f.PerRun))
	}
	return textLine(plain, text)
}

// balance says what the busiest of each kind does more than the mean.
func (r *renderer) balance() line {
	f := r.frame
	l := line{{"busiest  ", plain}}
	for _, b := range []struct {
		kind string
		Balance
	}{{"lane", f.Balance.Lanes}, {"queue", f.Balance.Queues}, {"core", f.Balance.Cores}} {
		if b.Ratio > 0 {
			l = append(l, span{" " + clean(strings.TrimPrefix(b.kind+" "+b.Busiest, "core ")), plain}, span{fmt.Sprintf(" %.2fx mean ", b.Ratio), dim})
		}
	}
	dropped := 0.0
	for _, d := range f.Drops {
		dropped += d.Rate
	}
	return append(l, span{fmt.Sprintf(" drops %s/s", count(dropped)), alarm(dropped)})
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// foot explains the keys, or says what is wrong.
func (r *renderer) foot() line {
	if r.Note != "" {
		return textLine(bad, clean(r.Note))
	}
	return textLine(dim, "q quit  tab view  s sort  r reverse  space pause  +/- interval  ? help")
}

func help() []line {
	var lines []line
	for _, l := range strings.Split(helpText, "\n") {
		lines = append(lines, textLine(plain, l))
	}
	return lines
}

const helpText = `
1-5, tab   overview, peers, lanes, queues and cores, drops
s          sort by traffic, received, sent, name
r          the other way round
up, down   scroll, also pgup, pgdown, home
space, p   pause
+, -       sample more often, less often
?, h       this help
q, ctrl+c  quit; ctrl+z suspends

A lane is one TUN queue, one worker, one socket. A train is one
element at the TUN, a run one at the socket: the more packets in
each, the fewer system calls. Queues are those of the NIC towards
the peers, with all its traffic. "2.00x mean": the busiest does
twice what it would if all did the same.`
