// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
	"time"
)

func TestSummarizeFindsGapsLongestFirst(t *testing.T) {
	// The second datagram is sent late, which is a pause of the prober. The one before the first answer does not count.
	sent := []time.Duration{0, 5, 6, 7, 8, 9, 10, 11}
	answered := []bool{false, true, false, true, false, false, true}
	p := summarize(sent, answered)
	want := []Gap{{Lost: 2, Began: 8, Lasted: 2}, {Lost: 1, Began: 6, Lasted: 1}, {Lost: 1, Began: 11}}
	if p.Sent != 7 || p.Received != 3 || p.Paused != 1 || !slices.Equal(p.Gaps, want) {
		t.Errorf("got %+v, want 7 sent, 3 received, and the gaps %v", p, want)
	}
	if p := summarize(sent, nil); p.Received != 0 || len(p.Gaps) != 1 || p.Gaps[0].Lost != len(sent) {
		t.Errorf("got %+v without any answer, want one gap", p)
	}
}
