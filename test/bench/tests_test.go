// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/test/bench/measure"
)

func TestTrialsRunOnlyWhenNamed(t *testing.T) {
	standard, trials := measure.Measures(), measure.Special()
	chosen, err := chooseMeasures(standard, trials, nil)
	if err != nil || len(chosen) != len(standard) {
		t.Errorf("%d by default, %v", len(chosen), err)
	}
	chosen, err = chooseMeasures(standard, trials, []string{"flood", "tcp1"})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"tcp1", "flood"}, measureNames(chosen)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if _, err := chooseMeasures(standard, trials, []string{"storm"}); err == nil {
		t.Error("a storm is a test")
	}
}

func TestEachDropReasonHasATableRow(t *testing.T) {
	list := []row{{test: "flood", figure: valueFigure}, {test: "flood", figure: "alone_gbps"}, {test: "rss", figure: valueFigure}}
	samples := []sample{
		{Test: "flood", Figures: map[string]float64{valueFigure: 1, measure.DropPrefix + "hs_queue_full": 2}},
		{Test: "flood", Figures: map[string]float64{measure.DropPrefix + "hs_invalid": 3, measure.DropPrefix + "hs_queue_full": 2}},
		{Test: "rss", Figures: map[string]float64{valueFigure: 4}},
	}
	var got []string
	for _, w := range withDrops(list, samples) {
		got = append(got, w.test+" "+w.figure)
	}
	want := []string{"flood value", "flood alone_gbps", "flood dropped_hs_invalid", "flood dropped_hs_queue_full", "rss value"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if d := cmp.Diff(len(list), len(withDrops(list, nil))); d != "" {
		t.Error("lines for nothing")
	}
}

func TestZeroOutageHasNoRatio(t *testing.T) {
	for _, w := range rows(measure.Trials()) {
		if w.figure == valueFigure && w.unit == "ms" && !w.bare {
			t.Errorf("%+v", w)
		}
	}
	if !slices.ContainsFunc(rows(measure.Trials()), func(w row) bool { return w.figure == "lost" }) {
		t.Error("no line for the pings that were lost")
	}
}
