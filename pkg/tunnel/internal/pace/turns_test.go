// SPDX-License-Identifier: Apache-2.0

package pace_test

import (
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
)

func TestTurnsComeInOrder(t *testing.T) {
	var parts [4]pace.Turn
	var came []int
	r := pace.Turns[int]{At: func(i int) *pace.Turn { return &parts[i] }, Come: func(i int) { came = append(came, i) }}
	r.SetLimit(1)
	if !r.Enter(0) || r.Enter(1) || r.Enter(2) || r.Enter(3) {
		t.Fatal("want a turn for the first only")
	}
	if !r.Withdraw(2) || r.Withdraw(2) || r.Withdraw(0) || r.Concerns(2) || !r.Concerns(3) {
		t.Error("want only a waiting peer to withdraw, once")
	}
	for i := range parts {
		r.Leave(i)
		r.Leave(i)
	}
	if running, waiting := r.Count(); running+waiting != 0 || !slices.Equal(came, []int{1, 3}) {
		t.Errorf("%d run and %d wait after the turns of %v, want none after 1 and 3", running, waiting, came)
	}
}
