// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

//go:generate go run -C _asm . -out ../poly_amd64.s poly

const (
	polyLaneCount = 8
	polyWindow    = 64 // number of jobs that are sorted by length
	polyRow       = 64 // bytes that a lane processes at a time: four blocks
)

// polyLanes is the argument of polyLanes512. A message's rows of 64 bytes are distributed over its split lanes in
// turn, aligned at the end: the last row of the last lane ends with the block of lengths, and the first may begin
// before the text. The assembly code depends on the layout.
type polyLanes struct {
	job    [polyLaneCount]*polyJob
	off    [polyLaneCount]int // the offset of the lane's first row in the text, negative if before it
	end    [polyLaneCount]int // the text length in lanes that end with the block of lengths, else 0
	stride int                // 64 times split
	lead   int                // the rows, without the last, that begin before some lane's text
	full   int                // the rows after these, without the last
	split  int                // lanes of each message: 1, 2, 4 or 8
}

// polyLanes512 needs AVX-512 F, BW, DQ, IFMA and VBMI2. It stores the tag of every lane's job, and leaves no secret
// in registers or on the stack.
//
//go:noescape
func polyLanes512(l *polyLanes)

// polyTags512 computes the tag of every job. Its time depends only on the lengths.
func polyTags512(_ *vectorScratch, jobs []polyJob) {
	for len(jobs) > 0 {
		n := min(len(jobs), polyWindow)
		polyTagsWindow(jobs[:n])
		jobs = jobs[n:]
	}
}

func polyTagsWindow(jobs []polyJob) {
	var order [polyWindow]uint8
	polySort(jobs, &order)
	var l polyLanes
	for rest := order[:len(jobs)]; len(rest) > 0; {
		n := min(len(rest), polyLaneCount)
		polyTagsBatch(jobs, rest[:n], &l)
		rest = rest[n:]
	}
}

// polySort sorts by length, longest first, by insertion: trains are already sorted, except for the last message.
func polySort(jobs []polyJob, order *[polyWindow]uint8) {
	for i := range jobs {
		at := i
		for ; at > 0 && jobs[order[at-1]].n < jobs[i].n; at-- {
			order[at] = order[at-1]
		}
		order[at] = uint8(i)
	}
}

// polyTagsBatch computes at most eight sorted jobs.
func polyTagsBatch(jobs []polyJob, order []uint8, l *polyLanes) {
	plan := polyPlan(jobs, order)
	for at := 0; at < len(order); {
		log := int(plan[at])
		if log == polyAlone {
			polyTagGeneric(&jobs[order[at]])
			at++
			continue
		}
		n := min(polyLaneCount>>log, len(order)-at)
		l.set(jobs, order[at:at+n], log)
		polyLanes512(l)
		at += n
	}
}

// set assigns the lanes to the jobs. Unused lanes repeat the last job.
func (l *polyLanes) set(jobs []polyJob, order []uint8, log int) {
	rows := int(polyRows(polyBlocks(&jobs[order[0]]), log))
	l.split, l.stride, l.lead = 1<<log, polyRow<<log, 0
	for i := range polyLaneCount {
		j := &jobs[order[min(i>>log, len(order)-1)]]
		part := i & (l.split - 1)
		off := polyRow*part + 16*int(polyBlocks(j)) - rows*l.stride
		l.job[i], l.off[i], l.end[i] = j, off, 0
		if part == l.split-1 {
			l.end[i] = j.n
		}
		l.lead = max(l.lead, (l.stride-1-off)>>(log+6))
	}
	l.lead = min(l.lead, rows-1)
	l.full = rows - 1 - l.lead
}
