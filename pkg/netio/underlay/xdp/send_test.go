// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// fullSources is the UDP socket of a lane with full send buffers.
type fullSources struct {
	waiter
	full []int
	sent []int
}

func (f *fullSources) Send(runs []underlay.Run) (failed int) {
	for i := range runs {
		r := &runs[i]
		if slices.Contains(f.full, r.Source) {
			r.Err = underlay.ErrSendBufferFull
			failed++
			continue
		}
		r.Err = nil
		f.sent = append(f.sent, r.Source)
	}
	return failed
}

// TestFullSendBufferRefusesOnlyItsRuns has runs that go through the UDP socket in two parts, with a frame between them. A buffer that has
// room again for the second part stays closed for that call: the runs would overtake those of the first.
func TestFullSendBufferRefusesOnlyItsRuns(t *testing.T) {
	socket := &fullSources{full: []int{2}}
	l := &lane{udp: socket}
	var s sender
	runs := make([]underlay.Run, 7)
	for i, source := range []int{1, 2, 3, 2, 1, 2, 3} {
		runs[i].Source = source
	}
	failed := s.sendUDP(l, nil, runs[:3])
	socket.full = nil
	failed += s.sendUDP(l, nil, runs[3:])
	if want := []int{1, 3, 1, 3}; !slices.Equal(socket.sent, want) || failed != 3 {
		t.Errorf("runs of sources %v were sent and %d failed, want %v and 3", socket.sent, failed, want)
	}
	for i, r := range runs {
		if full := errors.Is(r.Err, underlay.ErrSendBufferFull); full != (r.Source == 2) {
			t.Errorf("run %d of source %d: got error %v", i, r.Source, r.Err)
		}
	}
}
