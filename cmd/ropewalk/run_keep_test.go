// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestWaitingSupervisorDialsNoServedDaemon has another supervisor, with a daemon. The one that waits continues after both have ended.
func TestWaitingSupervisorDialsNoServedDaemon(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for the directory of control sockets")
	}
	name := fmt.Sprintf("kw%d", os.Getpid())
	s := &supervisor{name: name, log: slog.New(slog.DiscardHandler)}
	unlock, err := quick.Lock(quick.DefaultRunDir, name+".keep")
	expect.NoError(t, err)
	expect.NoError(t, os.MkdirAll("/var/run/wireguard", 0o700))
	daemon, err := net.Listen("unix", "/var/run/wireguard/"+name+".sock")
	expect.NoError(t, err)
	var dials atomic.Int32
	go func() {
		for {
			c, err := daemon.Accept()
			if err != nil {
				return
			}
			dials.Add(1)
			_ = c.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 3*servedPoll)
	defer cancel()
	s.standBy(ctx)
	if n := dials.Load(); n != 0 {
		t.Errorf("it has dialed the daemon of another supervisor %d times", n)
	}
	unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.standBy(t.Context())
	}()
	expect.Eventually(t, "it asks the daemon whether it serves", func() bool { return dials.Load() > 0 })
	expect.NoError(t, daemon.Close())
	<-ended
	if s.unlock == nil {
		t.Error("it does not hold the lock")
	}
	s.release()
}

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
