// SPDX-License-Identifier: Apache-2.0

package top

import (
	"strings"
	"unicode/utf8"
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

// span is text of one style. Each rune of it is one column wide: see clean.
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
		n += utf8.RuneCountInString(s.text)
	}
	return n
}

// shrinkable returns at most width columns of the line.
func (l line) cut(width int) line {
	var out line
	for _, s := range l {
		n := utf8.RuneCountInString(s.text)
		if n > width {
			out = append(out, span{string([]rune(s.text)[:max(width, 0)]), s.style})
			return out
		}
		out = append(out, s)
		width -= n
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

// clean replaces control and non-ASCII characters of an untrusted name: each rune takes one column.
func clean(name string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, name)
}

// pad fills text up to width columns.
func pad(text string, width int, right bool) string {
	fill := strings.Repeat(" ", max(width-utf8.RuneCountInString(text), 0))
	if right {
		return fill + text
	}
	return text + fill
}
