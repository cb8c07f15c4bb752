// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

//go:generate go run -C _asm . -out ../poly256_amd64.s poly256

// polyQuad is the argument of polyLanes256: a message in each of four lanes, in rows of 64 bytes. The rows are aligned at
// the end, where the block of lengths is, so that the first may begin before the text. The assembly code depends on the
// layout.
type polyQuad struct {
	job  [4]*polyJob
	off  [4]int // the offset of the lane's first row in the text, negative if before it
	lead int    // the rows, without the last, that begin before some lane's text
	full int    // the rows after these, without the last
	skip int    // the blocks of the first row before every lane's text
}

// polyLanes256 needs AVX2. It stores the tag of every lane's job, and leaves no secret in registers or on the stack.
//
//go:noescape
func polyLanes256(q *polyQuad)

// The costs of poly256 were measured on Zen 5, where a block without vectors takes 3.9 ns, and are scaled to that.
var poly256 = &polyKernel{
	lanes: 4,
	call:  []uint{270},
	row:   122,
	run: func(s *polyScratch, jobs []polyJob, order []uint8, _ int) {
		s.quad.set(jobs, order)
		polyLanes256(&s.quad)
	},
}

func polyTags256(s *vectorScratch, jobs []polyJob) { poly256.tags(&s.poly, jobs) }

// set assigns the lanes to at most four sorted jobs. Unused lanes repeat the last job.
func (q *polyQuad) set(jobs []polyJob, order []uint8) {
	blocks := int(polyBlocks(&jobs[order[0]]))
	rows := (blocks + 3) / 4
	for i := range q.job {
		q.job[i] = &jobs[order[min(i, len(order)-1)]]
		q.off[i] = 16*int(polyBlocks(q.job[i])) - polyRow*rows
	}
	q.skip = 4*rows - blocks
	q.lead = min((polyRow-1-q.off[3])/polyRow, rows-1)
	q.full = rows - 1 - q.lead
}
