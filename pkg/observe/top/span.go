// SPDX-License-Identifier: Apache-2.0

package top

import (
	"strings"
	"unicode"

	"github.com/charmbracelet/x/ansi"
)

// style is the SGR style of a span.
type style uint8

const (
	plain style = iota
	dim
	bold
	good
	warn
	bad
	reverse
)

// sgr returns the ECMA-48 SGR sequence of a style.
func (s style) sgr() string {
	return [...]string{"", "\x1b[2m", "\x1b[1m", "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[7m"}[s]
}

const sgrReset = "\x1b[0m"

// span is text of one style, without control characters: see term.Clean.
type span struct {
	text  string
	style style
}

// line is a line of a screen.
type line []span

func textLine(s style, text string) line { return line{{text, s}} }

// width is in columns.
func (l line) width() (n int) {
	for _, s := range l {
		n += columns(s.text)
	}
	return n
}

// cut returns at most width columns of the line.
func (l line) cut(width int) line {
	var out line
	for _, s := range l {
		n := columns(s.text)
		if n > width {
			out = append(out, span{cutText(s.text, width), s.style})
			return out
		}
		out = append(out, s)
		width -= n
	}
	return out
}

func (l line) ascii() line {
	out := make(line, len(l))
	for i, s := range l {
		out[i] = span{ascii(s.text), s.style}
	}
	return out
}

// paint writes the line without spaces at its end.
func (l line) paint(b *strings.Builder, color bool) {
	last := len(l) - 1
	for last >= 0 && strings.Trim(l[last].text, " ") == "" {
		last--
	}
	for i, s := range l[:last+1] {
		text := s.text
		if i == last {
			text = strings.TrimRight(text, " ")
		}
		if !color || s.style == plain {
			b.WriteString(text)
			continue
		}
		b.WriteString(s.style.sgr() + text + sgrReset)
	}
}

// ascii replaces other characters than ASCII's by as many question marks as they take columns.
func ascii(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r > unicode.MaxASCII {
			b.WriteString(strings.Repeat("?", columns(string(r))))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// columns returns the width of text: a Chinese character takes two columns, a combining accent none.
func columns(text string) int {
	if !strings.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII }) {
		return len(text)
	}
	return ansi.StringWidth(text)
}

// cutText returns the part of text that fits width columns.
func cutText(text string, width int) string { return ansi.Truncate(text, max(width, 0), "") }

// pad fills text up to width columns.
func pad(text string, width int, right bool) string {
	fill := strings.Repeat(" ", max(width-columns(text), 0))
	if right {
		return fill + text
	}
	return text + fill
}
