// SPDX-License-Identifier: Apache-2.0

package view

// enough is how many lines of a section say something: titles, rows, and how many more there are.
const enough = 5

// overview is a bit of everything. Where it is more than height lines (0: any number), each section gives way alike, and
// those that are least asked for go.
func (r *renderer) overview(height int) []line {
	tables := r.sections()
	if height == 0 {
		var lines []line
		for _, t := range tables {
			lines = append(append(lines, nil), t.lines(r.Width, 0)...)
		}
		return lines
	}
	needs, least := []int{}, 0
	for i, t := range tables {
		need := len(t.rows) + 1
		if least += min(need, enough); i > 0 && least > height {
			tables = tables[:i]
			break
		}
		needs = append(needs, need)
	}
	given := divide(needs, height)
	spare := height
	for _, n := range given {
		spare -= n
	}
	var lines []line
	for i, t := range tables {
		if spare >= len(tables) {
			lines = append(lines, nil)
		}
		lines = append(lines, t.lines(r.Width, given[i])...)
	}
	return lines
}

// sections are the tables that have something to show, what is asked for most first.
func (r *renderer) sections() []*table {
	var out []*table
	for _, t := range []*table{r.lanes(), r.peers(r.Width >= wholeKeyWidth), r.cores(), r.drops(), r.queues()} {
		if len(t.rows) > 0 {
			out = append(out, t)
		}
	}
	return out
}

// divide gives each need its part of what there is: as much as it needs, or as much as every other that needs more.
func divide(needs []int, height int) []int {
	given := make([]int, len(needs))
	for range height {
		least := -1
		for i := range needs {
			if given[i] < needs[i] && (least < 0 || given[i] < given[least]) {
				least = i
			}
		}
		if least < 0 {
			break
		}
		given[least]++
	}
	return given
}
