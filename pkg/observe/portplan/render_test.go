// SPDX-License-Identifier: Apache-2.0

package portplan

import (
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

func TestRenderColors(t *testing.T) {
	r := Report{Queues: []int{0}, Strategies: []Strategy{{Name: "hash", Loads: []float64{1}, BusiestToMean: 1, Median: 3}}}
	plain, color := r.Render(term.Style{}), r.Render(term.Style{Color: true})
	if strings.Contains(plain, "\x1b") || !strings.Contains(color, "\x1b[32m1.00 × mean") || !strings.Contains(color, "\x1b[31;1m3.00 × mean") {
		t.Errorf("got %q and %q", plain, color)
	}
}
