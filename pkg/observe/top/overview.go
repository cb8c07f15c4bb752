// SPDX-License-Identifier: Apache-2.0

package top

// minSectionLines is the number of lines a section needs to be useful: titles, rows, and the count of omitted rows.
const minSectionLines = 5

// overview returns all sections in at most height lines (0: any number). All sections shrink alike, and the least important
// ones are left out.
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
		if least += min(need, minSectionLines); i > 0 && least > height {
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

// sections returns the tables with rows, the most important first.
func (r *renderer) sections() []*table {
	var out []*table
	for _, t := range []*table{r.lanes(), r.peers(r.Width >= fullKeyWidth), r.cores(), r.drops(), r.queues()} {
		if len(t.rows) > 0 {
			out = append(out, t)
		}
	}
	return out
}

// divide shares height among needs (max-min fairness): each gets its need, or as much as every other unsatisfied one.
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
