// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
)

// fakeLabs is a runner's world: it notes what is opened, measured and closed.
type fakeLabs struct {
	journal []string
	samples []sample
	whole   []int
	open    map[string]bool
	// broken are implementations that do not start, failing pairs of implementation and test that fail.
	broken, failing map[string]error
	measuring       func(what string)
}

func (f *fakeLabs) runner(turns []turn, tests ...string) *runner {
	f.open = make(map[string]bool)
	return &runner{
		turns: turns, tests: tests, before: func(step) {}, after: func(step) {}, warn: func(error) {},
		found: func(s sample) error { f.samples = append(f.samples, s); return nil },
		whole: func(round int) error { f.whole = append(f.whole, round); return nil },
		open: func(_ context.Context, i string) (bed, error) {
			if err := f.broken[i]; err != nil {
				return nil, err
			}
			f.open[i] = true
			return &fakeBed{f, i}, nil
		},
	}
}

type fakeBed struct {
	labs           *fakeLabs
	implementation string
}

func (b *fakeBed) measure(_ context.Context, test string) (map[string]float64, error) {
	what := b.implementation + " " + test
	b.labs.journal = append(b.labs.journal, what)
	if b.labs.measuring != nil {
		b.labs.measuring(what)
	}
	if err := b.labs.failing[what]; err != nil {
		return nil, err
	}
	return map[string]float64{valueFigure: 1}, nil
}

func (b *fakeBed) Close() error {
	b.labs.open[b.implementation] = false
	return nil
}

func (f *fakeLabs) allClosed(t *testing.T) {
	t.Helper()
	for i, open := range f.open {
		if open {
			t.Errorf("%s is still open", i)
		}
	}
}

func TestMeasurementOrderAlternatesBetweenPairs(t *testing.T) {
	var f fakeLabs
	if err := f.runner(turns(2, []string{"x", "y"}, true), "tcp", "rtt").run(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"raw tcp", "raw rtt",
		"ropewalk tcp", "x tcp", "ropewalk rtt", "x rtt",
		"ropewalk tcp", "y tcp", "ropewalk rtt", "y rtt",
		"raw tcp", "raw rtt",
		"x tcp", "ropewalk tcp", "x rtt", "ropewalk rtt",
		"y tcp", "ropewalk tcp", "y rtt", "ropewalk rtt",
	}
	if d := cmp.Diff(want, f.journal); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	f.allClosed(t)
	if d := cmp.Diff([]int{1, 2}, f.whole); d != "" {
		t.Errorf("whole rounds: -want +got:\n%s", d)
	}
	first, last := f.samples[2], f.samples[19]
	if first.Round != 1 || first.Versus != "x" || first.Implementation != ropewalkName || first.Test != "tcp" {
		t.Errorf("ropewalk's first: %+v", first)
	}
	if last.Round != 2 || last.Versus != "y" || last.Implementation != ropewalkName || last.Test != "rtt" {
		t.Errorf("the last: %+v", last)
	}
}

func TestPeerFailureIsRecordedInItsSamples(t *testing.T) {
	f := fakeLabs{
		broken:  map[string]error{"x": errors.New("no such device")},
		failing: map[string]error{"y tcp": errors.New("it died")},
	}
	if err := f.runner(turns(1, []string{"x", "y"}, false), "tcp", "rtt").run(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range f.samples {
		if (s.Error == "") == (s.Figures == nil) {
			t.Errorf("neither figures nor an error, or both: %+v", s)
		}
		if s.Error != "" {
			got[s.Implementation+" "+s.Test] = s.Error
		}
	}
	want := map[string]string{"x tcp": "starting x: no such device", "x rtt": "starting x: no such device", "y tcp": "it died"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	f.allClosed(t)
}

func TestRunFailsWhenRopewalkDoesNotStart(t *testing.T) {
	f := fakeLabs{broken: map[string]error{ropewalkName: errors.New("no such device")}}
	err := f.runner(turns(1, []string{"x"}, true), "tcp").run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "starting ropewalk: no such device") {
		t.Errorf("got %v", err)
	}
	if len(f.samples) != 1 {
		t.Errorf("the cable's sample is lost, or there are too many: %v", f.samples)
	}
	f.allClosed(t)
}

func TestInapplicableTestHasNoSample(t *testing.T) {
	f := fakeLabs{failing: map[string]error{"raw rss": fmt.Errorf("reading: %w", testbed.ErrNoDaemon)}}
	if err := f.runner(turns(1, nil, true), "rss", "tcp").run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(f.samples) != 1 || f.samples[0].Test != "tcp" {
		t.Errorf("got %+v", f.samples)
	}
}

func TestInterruptedRunClosesLabsAndKeepsSamples(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := fakeLabs{measuring: func(what string) {
		if what == "x tcp" {
			cancel()
		}
	}}
	err := f.runner(turns(1, []string{"x"}, true), "tcp").run(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if len(f.samples) != 2 {
		t.Errorf("want the cable's and ropewalk's samples, got %+v", f.samples)
	}
	if len(f.whole) > 0 {
		t.Error("a round that was cut off counts as whole")
	}
	f.allClosed(t)
}
