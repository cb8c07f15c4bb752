// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

// View is one of the screens.
type View uint8

// The views. The zero View is Overview.
const (
	Overview View = iota
	Peers
	Lanes
	Queues // and cores
	Drops
	Flows
	Help
)

// Views returns the names of the views with data, without Help.
func Views() []string { return []string{"overview", "peers", "lanes", "queues", "drops", "flows"} }

// String returns the name.
func (v View) String() string { return append(Views(), "help")[min(v, Help)] }

// Next returns the view after v, cyclically, without Help.
func (v View) Next() View { return (v + 1) % Help }

// Options select how a frame is drawn.
type Options struct {
	Width, Height int // in columns and lines; 0 lines for no limit
	View          View
	Order         Order  // the frame's sort order, shown in the header
	Scroll        int    // lines skipped below the header; ignored in Overview
	Paused        bool   // show PAUSED
	Keys          bool   // show the keys in the last line
	Note          string // shown instead of the keys, an error for example
	Color         bool   // use SGR sequences; without them the output has no control characters except line feeds
	ASCII         bool   // draw bars without block characters, and replace such characters of names
}

// Render draws a frame within Width and Height. Every line, also the last, ends with a line feed.
func (f *Frame) Render(o Options) string {
	if o.View == Overview {
		o.Scroll = 0
	}
	r := renderer{Options: o, frame: f, keys: frameKeys}
	return r.paint(r.screen(r.header(), r.body))
}

// MaxScroll is the largest Options.Scroll that makes a difference.
func (f *Frame) MaxScroll(o Options) int {
	r := renderer{Options: o, frame: f, keys: frameKeys}
	if o.View == Overview || o.Height == 0 {
		return 0
	}
	return r.maxScroll(r.header(), r.body)
}

// renderer draws one frame.
type renderer struct {
	Options
	frame *Frame
	keys  string // shown in the last line
}

// paint returns the text of lines.
func (r *renderer) paint(lines []line) string {
	var b strings.Builder
	for _, l := range lines {
		if r.ASCII {
			l = l.ascii()
		}
		l.cut(r.Width).paint(&b, r.Color)
		b.WriteByte('\n')
	}
	return b.String()
}

// screen returns the header, the part of the body that fits, and the footer.
func (r *renderer) screen(head []line, draw func(height int) []line) []line {
	if r.Height == 0 {
		return append(head, draw(0)...)
	}
	room := r.room(len(head))
	body := draw(room)
	body = scrolled(body, min(max(r.Scroll, 0), max(len(body)-room, 0)))
	lines := append(head, body[:min(room, len(body))]...)
	if r.hasFooter() {
		for len(lines) < r.Height-1 {
			lines = append(lines, nil)
		}
		lines = append(lines[:r.Height-1], r.footer())
	}
	return lines[:min(len(lines), r.Height)]
}

func (r *renderer) maxScroll(head []line, draw func(height int) []line) int {
	return max(len(draw(0))-r.room(len(head)), 0)
}

// scrolled skips lines but keeps the titles of the first table in sight. Titles follow an empty line.
func scrolled(body []line, from int) []line {
	if from == 0 || from+1 >= len(body) {
		return body
	}
	titles := from + 1
	for titles > 1 && body[titles-1] != nil {
		titles--
	}
	if titles == from+1 { // they are in sight
		return body[from:]
	}
	return append([]line{body[titles]}, body[from+1:]...)
}

func (r *renderer) hasFooter() bool { return r.Keys || r.Note != "" }

// room returns the number of lines for the body.
func (r *renderer) room(head int) int {
	room := r.Height - head
	if r.hasFooter() {
		room--
	}
	return max(room, 0)
}

// body returns all lines of a view. The overview fits into height lines, unless height is 0.
func (r *renderer) body(height int) []line {
	var tables []*table
	switch r.View {
	case Overview:
		return r.overview(height)
	case Peers:
		tables = []*table{r.peers(r.Width >= fullKeyWidth)}
	case Lanes:
		tables = []*table{r.lanes(), r.batchSizes()}
	case Queues:
		tables = []*table{r.queues(), r.cores()}
	case Drops:
		tables = []*table{r.drops()}
	case Flows:
		tables = []*table{flowTable(r.frame.Flows, r.Options)}
	default:
		return help(frameHelp)
	}
	return r.stack(tables...)
}

// stack returns the lines of tables, with an empty line before each.
func (r *renderer) stack(tables ...*table) []line {
	var lines []line
	for _, t := range tables {
		lines = append(append(lines, nil), r.lines(t)...)
	}
	return lines
}

// fullKeyWidth is the smallest width for full public keys of 44 characters.
const fullKeyWidth = 110

// lines returns the lines of a table, or its text for an empty table.
func (r *renderer) lines(t *table) []line {
	if len(t.rows) == 0 {
		return []line{textLine(dim, t.empty)}
	}
	return t.lines(r.Width, 0)
}

// header returns the title, the totals and the balance.
func (r *renderer) header() []line {
	f := r.frame
	state := span{"up", good}
	if !f.Up {
		state = span{"down", bad}
	}
	title := line{
		{term.Clean(f.Interface), bold},
		{"  ", plain},
		state,
		{fmt.Sprintf("  %s  %s", term.Count(len(f.Lanes)-1, "lane"), term.Count(f.PeerCount, "peer")), plain},
		{"  " + term.Clean(strings.Join(f.Features, " ")), dim},
	}
	return []line{
		r.right(title, r.status(r.View.String(), f.Seconds)),
		r.direction("rx", &f.Rx), r.direction("tx", &f.Tx), r.balance(),
	}
}

// status returns the text in the upper right corner.
func (r *renderer) status(view string, seconds float64) span {
	if r.Order != ByDefault {
		view += " by " + r.Order.String()
	}
	if r.Paused {
		return span{view + "  PAUSED", reverse}
	}
	return span{fmt.Sprintf("%s  %.1f s", view, seconds), dim}
}

// right puts s at the right end and cuts the line if necessary.
func (r *renderer) right(l line, s span) line {
	n := line{s}.width()
	if r.Width < n+columnGap {
		return l
	}
	l = l.cut(r.Width - n - columnGap)
	return append(l, span{strings.Repeat(" ", r.Width-n-l.width()), plain}, s)
}

func (r *renderer) direction(name string, f *Flow) line {
	text := fmt.Sprintf("%-3s %9s %8s pps", name, bits(f.ByteRate), count(f.PacketRate))
	if f.PerTrain > 0 {
		text += fmt.Sprintf("  %s packets per train", average(f.PerTrain))
	}
	if f.PerBatch > 0 {
		text += fmt.Sprintf(", %s messages per batch", average(f.PerBatch))
	}
	return textLine(plain, text)
}

// balance returns the busiest lane, queue and CPU with their load relative to the mean, and the drop rate.
func (r *renderer) balance() line {
	f := r.frame
	l := line{{"busiest  ", plain}}
	for _, b := range []struct {
		kind string
		Balance
	}{{"lane", f.Balance.Lanes}, {"queue", f.Balance.Queues}, {"core", f.Balance.Cores}} {
		if b.Ratio > 0 {
			l = append(l, span{" " + term.Clean(strings.TrimPrefix(b.kind+" "+b.Busiest, "core ")), plain}, span{fmt.Sprintf(" %.2fx mean ", b.Ratio), dim})
		}
	}
	dropped := 0.0
	for _, d := range f.Drops {
		dropped += d.Rate
	}
	return append(l, span{fmt.Sprintf(" drops %s/s", count(dropped)), nonzeroStyle(dropped)})
}

// footer returns the keys, or the note.
func (r *renderer) footer() line {
	if r.Note != "" {
		return textLine(bad, term.Clean(r.Note))
	}
	return textLine(dim, r.keys)
}

func help(text string) []line {
	var lines []line
	for _, l := range strings.Split(text, "\n") {
		lines = append(lines, textLine(plain, l))
	}
	return lines
}

const (
	frameKeys = "q quit  tab view  s sort  r reverse  space pause  +/- interval  ? help"

	helpKeys = `s          sort by traffic, rx, tx, name
r          reverse the order
up, down   scroll, also pgup, pgdown, home
space, p   pause
+, -       shorter, longer sample interval
?, h       this help
q, ctrl+c  quit; ctrl+z suspends`

	frameHelp = `
1-6, tab   overview, peers, lanes, queues and CPUs, drops, flows
` + helpKeys + `

A lane is one TUN queue, one worker pair and one socket. A train
is one GSO packet at the TUN device, a batch one send or receive
at the socket. Larger ones need fewer system calls. NIC queue and
CPU rows count all traffic of the host. "2.00x mean": the busiest
has twice the average load.`
)
