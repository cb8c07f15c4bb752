// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

// Costs in cycles, as measured on Sapphire Rapids by BenchmarkPolyShapes: of a call by the logarithm of split, of a row; of a job
// and a block without vectors.
var polyCostCall = [...]uint{480, 540, 600, 640}

const (
	polyCostRow   = 70
	polyCostAlone = 15
	polyCostBlock = 22
)

// polyAlone in a plan stands for a job that takes no lanes.
const polyAlone = -1

// polyPlan decides how up to eight jobs are done, the longest first: the job at i begins a call in which 1<<plan[i] lanes share
// each message, or is done alone. The least sum of costs wins, counted from the last job to the first.
func polyPlan(jobs []polyJob, order []uint8) (plan [polyLaneCount]int8) {
	if polyAlike(jobs, order) {
		return plan
	}
	var cost [polyLaneCount + 1]uint
	for i := len(order) - 1; i >= 0; i-- {
		blocks := polyBlocks(&jobs[order[i]])
		cost[i], plan[i] = cost[i+1]+polyCostAlone+polyCostBlock*blocks, polyAlone
		for log, call := range polyCostCall {
			n := min(polyLaneCount>>log, len(order)-i)
			if 2*n <= polyLaneCount>>log {
				continue // twice the lanes for each would do
			}
			if c := cost[i+n] + call + polyCostRow*polyRows(blocks, log); c < cost[i] {
				cost[i], plan[i] = c, int8(log)
			}
		}
	}
	return plan
}

// polyAlike tells that eight jobs are of much the same length, so that a lane for each is best: the usual train.
func polyAlike(jobs []polyJob, order []uint8) bool {
	if len(order) < polyLaneCount {
		return false
	}
	least := polyBlocks(&jobs[order[polyLaneCount-1]])
	return least > 4 && 4*least >= 3*polyBlocks(&jobs[order[0]])
}

// polyBlocks counts the blocks of 16 of a job, that of the lengths included.
func polyBlocks(j *polyJob) uint { return (uint(j.n)+15)/16 + 1 }

// polyRows is the number of rows of four blocks each of 1<<log lanes has.
func polyRows(blocks uint, log int) uint { return (blocks + 4<<log - 1) >> (log + 2) }
