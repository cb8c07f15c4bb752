// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"testing"
	"time"
)

// TestCrashingDaemonLeavesTurnToOthers: a rollout that fixes a crash must not wait for the process whose daemons crash.
func TestCrashingDaemonLeavesTurnToOthers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	released := false
	s := &supervisor{log: slog.New(slog.DiscardHandler), unlock: func() { released = true }}
	for _, want := range []bool{false, true} {
		if s.pauseAfterCrash(ctx, nil, time.Second); released != want {
			t.Errorf("got %v, want %v", released, want)
		}
	}
}
