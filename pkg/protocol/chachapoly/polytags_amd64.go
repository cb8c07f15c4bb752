// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

const (
	polyWindow = 64 // number of jobs that are sorted by length
	polyBatch  = 8  // number of sorted jobs that are planned together
)

// polyKernel computes the tags of several jobs at a time, one in each lane of a vector, or one in several lanes.
type polyKernel struct {
	lanes int
	call  []uint // cost of a call, by the logarithm of the lanes of each job: see plan
	row   uint   // cost of a row of four blocks in each lane
	run   func(s *polyScratch, jobs []polyJob, order []uint8, log int)
}

// polyScratch is the memory of one polyKernel.tags. It keeps no secret, but pointers to jobs.
type polyScratch struct {
	order [polyWindow]uint8
	lanes polyLanes
	quad  polyQuad
}

// tags computes the tag of every job. Its time depends only on the lengths.
func (p *polyKernel) tags(s *polyScratch, jobs []polyJob) {
	for len(jobs) > 0 {
		window := jobs[:min(len(jobs), polyWindow)]
		jobs = jobs[len(window):]
		polySort(window, &s.order)
		for rest := s.order[:len(window)]; len(rest) > 0; {
			n := min(len(rest), polyBatch)
			p.batch(s, window, rest[:n])
			rest = rest[n:]
		}
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

// batch computes at most polyBatch sorted jobs.
func (p *polyKernel) batch(s *polyScratch, jobs []polyJob, order []uint8) {
	plan := p.plan(jobs, order)
	for at := 0; at < len(order); {
		log := int(plan[at])
		if log == polyAlone {
			polyTagGeneric(&jobs[order[at]])
			at++
			continue
		}
		n := min(p.lanes>>log, len(order)-at)
		p.run(s, jobs, order[at:at+n], log)
		at += n
	}
}
