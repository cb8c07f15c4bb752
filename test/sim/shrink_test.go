// SPDX-License-Identifier: Apache-2.0

package sim

import "slices"

// shrink returns a schedule with as few events as possible that still fails, by delta debugging: it leaves out ever smaller parts of the
// list. fails is called at most budget times.
func shrink(s *schedule, fails func(*schedule) bool, budget int) *schedule {
	for part := max(1, len(s.Events)/2); ; {
		smaller, left := withoutAPart(s, part, fails, &budget)
		if left {
			s = smaller
			part = max(1, min(part, len(s.Events)/2))
			continue
		}
		if part == 1 || budget <= 0 {
			return s
		}
		part /= 2
	}
}

// withoutAPart leaves out consecutive events such that the schedule still fails. left: there are such events.
func withoutAPart(s *schedule, part int, fails func(*schedule) bool, budget *int) (smaller *schedule, left bool) {
	for from := 0; from < len(s.Events); from += part {
		if *budget--; *budget < 0 {
			return s, false
		}
		c := *s
		c.Events = slices.Delete(slices.Clone(s.Events), from, min(from+part, len(s.Events)))
		if fails(&c) {
			return &c, true
		}
	}
	return s, false
}
