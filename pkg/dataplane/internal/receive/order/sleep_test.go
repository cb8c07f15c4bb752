// SPDX-License-Identifier: Apache-2.0

package order

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestSleepingLaneForgetsEndedStreams: nothing else arrives that would wake it. A stream in use stays, also if the lane sleeps between its messages.
func TestSleepingLaneForgetsEndedStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newOrderRig(t)
		s := r.Stream(8)
		arrive := func(n int) {
			r.orders.Wake()
			s.Arrive(n)
			r.orders.Sleep()
		}
		arrive(0)
		list := func() []*order { // of a lane that sleeps
			r.orders.sleeping.mu.Lock()
			defer r.orders.sleeping.mu.Unlock()
			return slices.Clone(r.orders.list)
		}
		first := list()[0]
		for n := 1; n < 8; n++ {
			time.Sleep(time.Duration(orderIdle) * 3 / 4)
			arrive(n)
		}
		if !slices.Contains(list(), first) {
			t.Error("the order of a stream in use was forgotten")
		}
		time.Sleep(3 * time.Duration(orderIdle))
		synctest.Wait()
		if n := len(list()); n != 0 {
			t.Errorf("the lane keeps the order of %d streams", n)
		}
		if got := s.Got(); !slices.Equal(got, []int{0, 1, 2, 3, 4, 5, 6, 7}) {
			t.Errorf("got %v", got)
		}
	})
}
