// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"syscall"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// TestLoopRefusesOnlyItsDestination sends by a lane, and beside the lanes.
func TestLoopRefusesOnlyItsDestination(t *testing.T) {
	p, at := open(t, Config{}), open(t, Config{})
	looping, other := loopback(at, false), loopback(at, true)
	send := func(to *underlay.Endpoint) []error {
		runs, single := []underlay.Run{small(to, 0, 0)}, small(to, 0, 0)
		p.Lane(0).Send(runs)
		return []error{runs[0].Err, p.SendTo(to, make([]byte, 100)), p.SendRun(&single)}
	}
	for _, loops := range []bool{true, true, false} { // the second time changes nothing
		p.SetLoop(looping.Destination(), loops)
		for i, err := range send(&looping) {
			if loops != (errors.Is(err, underlay.ErrLoop) && errors.Is(err, syscall.ELOOP)) || !loops && err != nil {
				t.Errorf("a loop is %v, method %d: got error %v", loops, i, err)
			}
		}
		for i, err := range send(&other) {
			if err != nil {
				t.Errorf("another destination, a loop is %v, method %d: got error %v", loops, i, err)
			}
		}
	}
}
