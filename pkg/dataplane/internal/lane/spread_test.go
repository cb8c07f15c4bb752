// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"testing"
)

func TestCountingByPortAllocatesNothing(t *testing.T) {
	var p Peer
	p.Spread.Store(NewSpread([]uint8{1, 200}))
	p.CountPort(61000, 1)
	if n := testing.AllocsPerRun(100, func() {
		p.CountSource(200, 3)
		p.CountPort(61000, 3)
		p.CountPort(61001, 3)
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
