// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/spread"
)

func TestThreadSchedulingFailureIsLoggedOnce(t *testing.T) {
	var b bytes.Buffer
	begin := ownThread(slog.New(slog.NewTextHandler(&b, nil)), 0)
	var loops sync.WaitGroup
	for range 4 {
		loops.Go(func() { begin("a\x00b") }) // an invalid thread name
	}
	loops.Wait()
	if n := strings.Count(b.String(), "\n"); n != 1 || !strings.Contains(b.String(), "level=WARN") {
		t.Errorf("%d lines:\n%s", n, b.String())
	}
}

func TestAutoWorkersLeaveTwoCPUsFree(t *testing.T) {
	for wanted, want := range map[int][]int{AutoWorkers: {0, 0, 1, 2, 4, 4}, 0: {0, 0, 0, 0, 0, 0}, 3: {3, 3, 3, 3, 3, 3}} {
		for i, cpus := range []int{1, 2, 3, 4, 6, 64} {
			if n := workers(wanted, cpus); n != want[i] {
				t.Errorf("%d: %d workers with %d CPUs, want %d", wanted, n, cpus, want[i])
			}
		}
	}
}

// TestSecondTunnelHasTheSameDefaults raises GOMAXPROCS for the first tunnel, which must not count as CPUs for the second.
func TestSecondTunnelHasTheSameDefaults(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	first := Options{Workers: AutoWorkers}.complete()
	raiseGOMAXPROCS(64, 4)
	if next := (Options{Workers: AutoWorkers}).complete(); next.Lanes != first.Lanes || next.Workers != first.Workers {
		t.Errorf("%d lanes and %d workers, before that %d and %d", next.Lanes, next.Workers, first.Lanes, first.Workers)
	}
}

func TestSpreadPortsInLocalPortRangeAreLogged(t *testing.T) {
	enterNamespaces(t)
	for _, tt := range []struct {
		local, reserved string
		warn            bool
	}{
		{"32768 60999", "", false},
		{"32768 61010", "", true},
		{"32768 61010", "61000-61009", true},
		{"32768 61010", "61000-61010", false},
	} {
		for name, text := range map[string]string{"ip_local_port_range": tt.local, "ip_local_reserved_ports": tt.reserved + "\n"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(text), 0o600); err != nil {
				t.Skip("needs /proc/sys/net/ipv4: ", err)
			}
		}
		var b bytes.Buffer
		warnOfLocalPorts(slog.New(slog.NewTextHandler(&b, nil)), spread.DefaultPorts)
		if got := strings.Contains(b.String(), "ip_local_reserved_ports="); got != tt.warn {
			t.Errorf("%+v: %q", tt, b.String())
		}
	}
}

// enterNamespaces moves the test's goroutine to new network and mount namespaces, which end with its thread.
func enterNamespaces(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		runtime.UnlockOSThread()
		t.Skipf("needs root for namespaces: %v", err)
	}
}
