// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"slices"
)

// Widths of columns.
const (
	columnGap = 2
	minBar    = 6
	maxBar    = 30
	minCut    = 8
	rateWidth = 9 // "99.9 Gb/s": columns do not jump when a rate changes
)

// column is a table column. If the table is too wide, columns are dropped, those with the highest rank first.
type column struct {
	title      string
	rank       int  // 0 is never dropped
	right      bool // aligned
	rate       bool // cells are rates in bits, aligned right
	bar        bool // cells are shares, drawn
	shrinkable bool // may be shortened
}

func (c *column) toRight() bool { return c.right || c.rate }

// cell is text, or a share in a bar column.
type cell struct {
	text  string
	share float64
	style style
}

// table is rows under titles.
type table struct {
	columns []column
	rows    [][]cell
	ascii   bool
	empty   string // shown if there are no rows
}

// lines draws the table within a width and a number of lines (0: any). If not all rows fit, it draws the largest ones, and
// the last line counts the others.
func (t *table) lines(width, height int) []line {
	rows := t.rows
	if height > 0 && len(rows)+1 > height {
		rows = t.largest(max(height-2, 1))
	}
	widths := t.widths(width)
	out := []line{t.titles(widths).cut(width)}
	for _, row := range rows {
		out = append(out, t.row(row, widths).cut(width))
	}
	if rest := len(t.rows) - len(rows); rest > 0 && len(out) < height {
		out = append(out, textLine(dim, fmt.Sprintf("  %d more", rest)).cut(width))
	}
	return out
}

// largest returns the n rows with the largest bars in table order, or the first n without bars.
func (t *table) largest(n int) [][]cell {
	at := slices.IndexFunc(t.columns, func(c column) bool { return c.bar })
	if at < 0 {
		return t.rows[:n]
	}
	order := make([]int, len(t.rows))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(t.rows[b][at].share, t.rows[a][at].share) })
	order = order[:n]
	slices.Sort(order)
	rows := make([][]cell, n)
	for i, row := range order {
		rows[i] = t.rows[row]
	}
	return rows
}

// widths returns the column widths, 0 for a dropped column.
func (t *table) widths(width int) []int {
	natural := t.natural()
	widths := make([]int, len(natural))
	for i, c := range t.columns {
		widths[i] = natural[i]
		if c.shrinkable {
			widths[i] = min(natural[i], minCut)
		}
	}
	for used(widths) > width {
		if !t.dropColumns(widths) {
			break
		}
	}
	t.widen(widths, natural, width-used(widths))
	return widths
}

// dropColumns drops all columns of the highest rank.
func (t *table) dropColumns(widths []int) bool {
	highest := 0
	for i, c := range t.columns {
		if widths[i] > 0 {
			highest = max(highest, c.rank)
		}
	}
	for i, c := range t.columns {
		if highest > 0 && c.rank == highest {
			widths[i] = 0
		}
	}
	return highest > 0
}

// widen gives the remaining width to shrunk columns, then to bars.
func (t *table) widen(widths, natural []int, left int) {
	grow := func(i, to int) {
		more := min(max(to-widths[i], 0), max(left, 0))
		widths[i] += more
		left -= more
	}
	for i, c := range t.columns {
		if c.shrinkable && widths[i] > 0 {
			grow(i, natural[i])
		}
	}
	for i, c := range t.columns {
		if c.bar && widths[i] > 0 {
			grow(i, maxBar)
		}
	}
}

// natural returns the widths of the widest cells.
func (t *table) natural() []int {
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		widths[i] = columns(c.title)
		if c.bar {
			widths[i] = max(widths[i], minBar)
		}
		if c.rate {
			widths[i] = max(widths[i], rateWidth)
		}
	}
	for _, row := range t.rows {
		for i := range row {
			widths[i] = max(widths[i], columns(row[i].text))
		}
	}
	return widths
}

func used(widths []int) int {
	n := 0
	for _, w := range widths {
		if w > 0 {
			n += w + columnGap
		}
	}
	return n - columnGap
}

func (t *table) titles(widths []int) line {
	return t.layout(widths, func(i int) span { return span{pad(t.columns[i].title, widths[i], t.columns[i].toRight()), bold} })
}

func (t *table) row(row []cell, widths []int) line {
	return t.layout(widths, func(i int) span {
		c := row[i]
		if t.columns[i].bar {
			return span{bar(c.share, widths[i], t.ascii), c.style}
		}
		return span{pad(cutText(c.text, widths[i]), widths[i], t.columns[i].toRight()), c.style}
	})
}

func (t *table) layout(widths []int, at func(int) span) line {
	var l line
	for i, w := range widths {
		if w == 0 {
			continue
		}
		if len(l) > 0 {
			l = append(l, span{"  ", plain})
		}
		l = append(l, at(i))
	}
	return l
}
