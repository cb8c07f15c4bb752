// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDropCountsSubtractEarlierCounts(t *testing.T) {
	before := dropCounts{"a": 3, "b": 4}
	got := dropCounts{"a": 3, "b": 6, "c": 1}.since(before)
	if d := cmp.Diff(dropCounts{"b": 2, "c": 1}, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if got := dropCounts(nil).since(nil); len(got) != 0 {
		t.Errorf("of a daemon that does not say: %v", got)
	}
	if got := before.since(nil); len(got) != 0 {
		t.Errorf("before is not known: %v", got)
	}
}

func TestDropsArePercentOfFloodPackets(t *testing.T) {
	more := map[string]float64{}
	addDrops(more, dropCounts{"hs_queue_full": 30}, 120)
	want := map[string]float64{"dropped_hs_queue_full": 25}
	if d := cmp.Diff(want, more); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestFloodResultIsRelativeToOtherHost(t *testing.T) {
	s, err := floodSample(map[string]float64{"alone_gbps": 6, "elsewhere_gbps": 4, "tunnel_gbps": 3})
	if err != nil || math.Abs(s.Value-75) > 1e-9 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := floodSample(map[string]float64{"tunnel_gbps": 3}); err == nil {
		t.Error("a share of nothing")
	}
}
