// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"testing"
)

func TestProgressChangesWithEachBatch(t *testing.T) {
	var p progress
	last := Progress(p.n.Load())
	for i, step := range []struct {
		do      func()
		working bool
		changes bool
	}{
		{p.Rest, false, false}, {p.Work, true, true}, {p.Work, true, true}, {p.Rest, false, true}, {p.Rest, false, false}, {p.Work, true, true},
	} {
		step.do()
		now := Progress(p.n.Load())
		if now.Working() != step.working || (now != last) != step.changes {
			t.Errorf("step %d: got %d after %d, want working %v, changed %v", i, now, last, step.working, step.changes)
		}
		last = now
	}
}
