// SPDX-License-Identifier: Apache-2.0

package device

import (
	"math/rand/v2"
	"testing"
)

// TestTaskQueueIsFIFO compares the queue with a plain slice.
func TestTaskQueueIsFIFO(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 7))
		var q taskQueue
		q.init()
		var want []*Peer
		for range 5000 {
			if busy := 1 + r.IntN(1000); len(want) < busy && r.IntN(3) > 0 {
				p := &Peer{}
				q.put(p)
				want = append(want, p)
			} else if len(want) > 0 {
				<-q.waiting
				if got := q.take(); got != want[0] {
					t.Fatal("another peer was next")
				}
				want = want[1:]
			}
			if len(q.waiting) != len(want) || len(q.peers)-q.first != len(want) {
				t.Fatalf("%d tokens and %d peers, want %d", len(q.waiting), len(q.peers)-q.first, len(want))
			}
		}
	}
}

func TestEmptyTaskQueueReleasesMemory(t *testing.T) {
	var q taskQueue
	q.init()
	for range 1000 {
		q.put(&Peer{})
	}
	for range 1000 {
		<-q.waiting
		q.take()
	}
	if n := cap(q.peers); n > minTaskCapacity {
		t.Errorf("room for %d peers is kept", n)
	}
}
