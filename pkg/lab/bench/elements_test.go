// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
)

// TestTUNElementsAreValidPackets: the engine's own parser takes them, as so many packets of that size.
func TestTUNElementsAreValidPackets(t *testing.T) {
	for _, c := range []struct {
		element  []byte
		segments int
		size     int
	}{
		{trainElement(trainShape()), 45, 1440},
		{smallElement(smallShape()), 1, 64},
	} {
		var h offload.VnetHdr
		h.Decode(c.element)
		var train offload.Train
		if reason := train.Parse(h, c.element[offload.VnetHdrLen:]); reason != drop.None {
			t.Fatalf("dropped: %v", reason)
		}
		if train.Segments() != c.segments || train.SegmentLen() != c.size || train.LastLen() != c.size {
			t.Errorf("%d of %d, the last %d; want %d of %d", train.Segments(), train.SegmentLen(), train.LastLen(), c.segments, c.size)
		}
	}
}
