// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestStartupWaitsForOwnProbes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	if err := CheckStartup(t.Context(), path); err == nil {
		t.Error("no error without an agent")
	}
	expect.NoError(t, os.WriteFile(path, nil, 0o600)) // as an earlier agent of the pod leaves it
	var s Stats
	expect.NoError(t, ServeStartup(t.Context(), path, &s))
	expect.EventuallyNoError(t, "not started while another agent answers the probes", func() error { // a slow machine may exceed startupTimeout
		err := CheckStartup(t.Context(), path)
		if err == nil || !strings.Contains(err.Error(), "has not been taken over") {
			return fmt.Errorf("got %q", fmt.Sprint(err))
		}
		return nil
	})
	s.Ready.Store(true)
	expect.EventuallyNoError(t, "ready while it waits for the other agent", func() error { return CheckStartup(t.Context(), path) })
	s.Ready.Store(false)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = Serve(t.Context(), l, Content{&s, "test", slog.New(slog.DiscardHandler)})
	}()
	t.Cleanup(func() { <-done })
	expect.EventuallyNoError(t, "started once it answers the probes", func() error { return CheckStartup(t.Context(), path) })
	if err := ServeStartup(t.Context(), filepath.Join(path, "missing"), &s); err == nil {
		t.Error("no error for a path that cannot exist")
	}
}
