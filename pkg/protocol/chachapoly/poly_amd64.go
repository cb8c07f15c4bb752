// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

//go:generate go run -C _asm . -out ../poly_amd64.s poly

const (
	polyLaneCount = 8
	polyRow       = 64 // bytes that a lane processes at a time: four blocks
)

// polyLanes is the argument of polyLanes512. A message's rows of 64 bytes are distributed over its
// split lanes in turn, aligned at the end. The last row of the last lane ends with the block of
// lengths, and the first row may begin before the text. The assembly code depends on the layout.
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

var poly512 = &polyKernel{
	lanes: polyLaneCount,
	call:  []uint{480, 540, 600, 640},
	row:   70,
	run: func(s *polyScratch, jobs []polyJob, order []uint8, log int) {
		s.lanes.set(jobs, order, log)
		polyLanes512(&s.lanes)
	},
}

func polyTags512(s *vectorScratch, jobs []polyJob) { poly512.tags(&s.poly, jobs) }

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
