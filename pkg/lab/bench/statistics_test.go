// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

func TestMeterIgnoresInterruptedBatches(t *testing.T) {
	var m meter
	if m.perSecond(10) != 0 {
		t.Error("a rate of nothing")
	}
	for _, ms := range []int{1, 1, 1, 500, 1} {
		m.add(time.Duration(ms) * time.Millisecond)
	}
	if got := m.perSecond(10); got != 10000 {
		t.Errorf("%v per second, want 10000", got)
	}
}

func TestRepeatEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	rounds := 0
	err := repeat(ctx, time.Hour, func(bool) error {
		if rounds++; rounds == 50 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || rounds != 50 {
		t.Errorf("%d rounds, %v", rounds, err)
	}
}

func TestLanesDoubleUpToTheCores(t *testing.T) {
	for cores, want := range map[int][]int{1: {1}, 2: {1, 2}, 6: {1, 2, 4, 6}, 16: {1, 2, 4, 8, 16}} {
		if got := lanesUpTo(cores); !slices.Equal(got, want) {
			t.Errorf("%d cores: %v", cores, got)
		}
	}
}
