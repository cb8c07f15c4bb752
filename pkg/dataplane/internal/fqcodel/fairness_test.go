// SPDX-License-Identifier: Apache-2.0

package fqcodel

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// maxTrain is the size of the largest element.
const maxTrain = 64 << 10

// parcel is an element of known size.
type parcel struct {
	flow  int
	bytes int
}

// scheduler is a queue whose time stands still, so that it never signals. It counts the bytes that each flow has sent.
type scheduler struct {
	*Queue[parcel]
	quantum int
	sent    []int
	total   int
}

func newScheduler(flows, quantum int) *scheduler {
	return &scheduler{
		Queue:   New(Config[parcel]{Params: internet, Flows: 1024, Quantum: quantum, Elements: 4096, Bytes: 1 << 30}),
		quantum: quantum, sent: make([]int, flows),
	}
}

func (s *scheduler) push(flow, bytes int) { s.Push(uint32(flow), parcel{flow, bytes}, bytes, 1) }

func (s *scheduler) pop() (p parcel, sparse bool) {
	p, sparse, ok := s.Pop(1)
	if !ok {
		panic("queue is empty")
	}
	s.sent[p.flow] += p.bytes
	s.total += p.bytes
	return p, sparse
}

// quanta are less than an element, the engine's, and as large as an element.
var quanta = []int{1514, 16 << 10, maxTrain}

// Deficit round robin: the bytes that two flows with backlog have sent differ by less than the quantum and the larger flow's largest element
// (Shreedhar and Varghese, "Efficient fair queuing using deficit round-robin", 1996).
func TestFlowsWithBacklogGetEqualBytes(t *testing.T) {
	const flows = 64
	sizes := map[string]func(rnd *rand.Rand, flow int) int{
		"one size per flow": func(_ *rand.Rand, flow int) int { return 64 + flow*(maxTrain-64)/(flows-1) },
		"random sizes":      func(rnd *rand.Rand, _ int) int { return 64 + rnd.IntN(maxTrain-63) },
		"small and large": func(_ *rand.Rand, flow int) int {
			if flow%2 == 0 {
				return 64
			}
			return maxTrain
		},
	}
	for name, size := range sizes {
		for _, quantum := range quanta {
			t.Run(fmt.Sprintf("%s/quantum %d", name, quantum), func(t *testing.T) {
				rnd, s := rand.New(rand.NewPCG(1, 2)), newScheduler(flows, quantum)
				largest := make([]int, flows)
				push := func(flow int) {
					bytes := size(rnd, flow)
					largest[flow] = max(largest[flow], bytes)
					s.push(flow, bytes)
				}
				for flow := range flows {
					push(flow)
					push(flow)
				}
				for range 100_000 {
					p, _ := s.pop()
					push(p.flow)
					if lead := s.sent[p.flow] - slices.Min(s.sent); lead >= quantum+largest[p.flow] {
						t.Fatalf("flow %d is ahead by %d bytes, its largest element is %d", p.flow, lead, largest[p.flow])
					}
				}
			})
		}
	}
}

// RFC 8290, section 4.2: all new flows are served before any old one.
func TestSparseFlowsPrecedeBulk(t *testing.T) {
	const bulk, sparse = 100, 5
	for _, quantum := range quanta {
		s := newScheduler(bulk+sparse, quantum)
		for flow := range bulk {
			s.push(flow, maxTrain)
			s.push(flow, maxTrain)
		}
		popBulk := func() {
			p, _ := s.pop()
			s.push(p.flow, p.bytes)
		}
		for range 100 {
			for start := s.total; s.total-start < 2*bulk*(quantum+maxTrain); {
				popBulk() // until the sparse flows are idle again
			}
			for i := range sparse {
				s.push(bulk+i, 64)
			}
			for i := range sparse {
				if p, first := s.pop(); p.flow != bulk+i || !first {
					t.Fatalf("quantum %d: element of flow %d (sparse: %v) before flow %d", quantum, p.flow, first, bulk+i)
				}
			}
			if _, first := s.pop(); first {
				t.Fatal("element of a bulk flow is sparse")
			}
		}
	}
}

// A new flow waits for the new flows before it, each of which sends less than a quantum and an element before it is an old one.
func TestNewFlowWaitsForOneQuantumOfOthers(t *testing.T) {
	const flows = 100
	for _, quantum := range quanta {
		s := newScheduler(flows+1, quantum)
		for flow := range flows {
			for range 1 + 2*quantum/maxTrain {
				s.push(flow, maxTrain)
			}
		}
		s.push(flows, 64)
		for {
			p, _ := s.pop()
			if p.flow == flows {
				break
			}
			if s.total >= flows*(quantum+maxTrain) {
				t.Fatalf("quantum %d: new flow waits for more than %d bytes", quantum, s.total)
			}
		}
		if got := slices.Max(s.sent); got >= quantum+maxTrain {
			t.Errorf("quantum %d: a flow has sent %d bytes before the last new one", quantum, got)
		}
	}
}

// A flow that sends again before the round has come to it is no new one. It waits for one round, and for a second one if it has used up
// its quantum. In a round, each other flow sends less than a quantum and an element.
func TestLightFlowWaitsTwoRoundsAtMost(t *testing.T) {
	const bulk = 50
	for _, quantum := range quanta {
		rnd, s := rand.New(rand.NewPCG(3, 4)), newScheduler(bulk+1, quantum)
		for flow := range bulk {
			s.push(flow, maxTrain)
			s.push(flow, maxTrain)
		}
		waiting, since := false, 0
		for range 50_000 {
			if !waiting && rnd.IntN(20) == 0 {
				s.push(bulk, 64)
				waiting, since = true, s.total
			}
			p, _ := s.pop()
			if p.flow == bulk {
				waiting = false
			} else {
				s.push(p.flow, p.bytes)
			}
			if wait := s.total - since; waiting && wait >= 2*bulk*(quantum+maxTrain) {
				t.Fatalf("quantum %d: element waits for %d bytes", quantum, wait)
			}
		}
	}
}

// A flow that empties is new again only after a round. It begins with a full quantum then, whatever its deficit was: it gets less than two
// quanta per round. Without the round, it would keep the old flows from being served (RFC 8290, section 4.2).
func TestBurstyFlowDoesNotStarveOldFlows(t *testing.T) {
	for _, quantum := range quanta {
		for _, size := range []int{1500, maxTrain} {
			for burst := 64; burst <= 4*maxTrain; burst *= 2 {
				for pause := range 3 {
					t.Run(fmt.Sprintf("quantum %d/elements of %d/bursts of %d/pause %d", quantum, size, burst, pause), func(t *testing.T) {
						alternate(t, quantum, size, burst, pause)
					})
				}
			}
		}
	}
}

// alternate checks four old flows with elements of one size against a flow that sends a burst when it has been empty for a number of pops.
func alternate(t *testing.T, quantum, size, burst, pause int) {
	const old = 4
	s := newScheduler(old+1, quantum)
	for flow := range old {
		s.push(flow, size)
		s.push(flow, size)
	}
	queued, idle := 0, pause
	for range 5000 {
		if queued == 0 && idle >= pause {
			idle = 0
			for left := burst; left > 0; left -= size {
				s.push(old, min(left, size))
				queued++
			}
		}
		if p, _ := s.pop(); p.flow == old {
			queued--
		} else {
			s.push(p.flow, p.bytes)
		}
		if queued == 0 {
			idle++
		}
		if least := slices.Min(s.sent[:old]); s.sent[old] > 2*(least+quantum+size) {
			t.Fatalf("bursty flow gets %d bytes, an old flow %d", s.sent[old], least)
		}
	}
}
