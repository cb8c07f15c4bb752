// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

import (
	"testing"

	"github.com/ropewalk/ropewalk/test/guardpage"
)

// TestVectorTagReadsNothingOutsideText puts texts at both ends of memory between two pages that fault.
func TestVectorTagReadsNothingOutsideText(t *testing.T) {
	const size = 3 * 4096
	memory := guardpage.Map(t, size)
	for i := range memory {
		memory[i] = byte(i * i >> 3)
	}
	eachSplit(t, func(t *testing.T, p *polyKernel, log int) {
		for _, n := range awkwardLengths() {
			if n > size || n > 300 && n%64 > 2 {
				continue
			}
			jobs := []polyJob{polyFills[0].job(0), polyFills[0].job(0)}
			jobs[0].setText(memory[size-n:])
			jobs[1].setText(memory[:n])
			if p.lanes>>log == 1 {
				checkTags(t, jobs[:1], inLanes(p, log))
				jobs = jobs[1:]
			}
			checkTags(t, jobs, inLanes(p, log))
			checkTags(t, jobs, planned(p))
		}
	})
}
