// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

// Costs in cycles of a job and a block without vectors. These and the costs of poly512 were measured on Sapphire Rapids,
// with BenchmarkPolyShapes.
const (
	polyCostAlone = 15
	polyCostBlock = 22
)

// polyAlone in a plan marks a job that is computed without vectors.
const polyAlone = -1

// plan decides how up to polyBatch jobs, sorted longest first, are computed. The job at i starts a call in which
// 1<<plan[i] lanes share each message, or is computed alone. It minimizes the sum of costs, from the last job to the
// first.
func (p *polyKernel) plan(jobs []polyJob, order []uint8) (plan [polyBatch]int8) {
	if polySimilar(jobs, order) {
		return plan
	}
	var cost [polyBatch + 1]uint
	for i := len(order) - 1; i >= 0; i-- {
		blocks := polyBlocks(&jobs[order[i]])
		cost[i], plan[i] = cost[i+1]+polyCostAlone+polyCostBlock*blocks, polyAlone
		for log, call := range p.call {
			n := min(p.lanes>>log, len(order)-i)
			if 2*n <= p.lanes>>log && log < len(p.call)-1 {
				continue // twice the lanes per message would fit
			}
			if c := cost[i+n] + call + p.row*polyRows(blocks, log); c < cost[i] {
				cost[i], plan[i] = c, int8(log)
			}
		}
	}
	return plan
}

// polySimilar reports whether polyBatch jobs have similar lengths, as in most trains: one lane for each is then best.
func polySimilar(jobs []polyJob, order []uint8) bool {
	if len(order) < polyBatch {
		return false
	}
	least := polyBlocks(&jobs[order[polyBatch-1]])
	return least > 4 && 4*least >= 3*polyBlocks(&jobs[order[0]])
}

// polyBlocks is the number of 16-byte blocks of a job, including the block of lengths.
func polyBlocks(j *polyJob) uint { return (uint(j.n)+15)/16 + 1 }

// polyRows is the number of rows of four blocks each of 1<<log lanes has.
func polyRows(blocks uint, log int) uint { return (blocks + 4<<log - 1) >> (log + 2) }
