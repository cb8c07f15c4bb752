// SPDX-License-Identifier: Apache-2.0

package linger

import (
	"errors"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pipe returns the descriptors of a pipe, closed when the test ends.
func pipe(t *testing.T) (r, w int) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.Close(fds[0]), unix.Close(fds[1]) })
	return fds[0], fds[1]
}

func both(t *testing.T, f func(t *testing.T, linger bool)) {
	for name, linger := range map[string]bool{"lingering": true, "blocking": false} {
		t.Run(name, func(t *testing.T) { f(t, linger) })
	}
}

func TestPollTellsWhichIsReady(t *testing.T) {
	both(t, func(t *testing.T, linger bool) {
		first, _ := pipe(t)
		second, w := pipe(t)
		if _, err := unix.Write(w, []byte{1}); err != nil {
			t.Fatal(err)
		}
		fds := []unix.PollFd{{Fd: int32(first), Events: unix.POLLIN}, {Fd: int32(second), Events: unix.POLLIN}}
		if err := Poll(fds, linger); err != nil || fds[0].Revents != 0 || fds[1].Revents != unix.POLLIN {
			t.Errorf("%v, %+v", err, fds)
		}
	})
}

func TestPollReportsABadDescriptor(t *testing.T) {
	both(t, func(t *testing.T, linger bool) {
		fds := []unix.PollFd{{Fd: 1 << 30, Events: unix.POLLIN}}
		if err := Poll(fds, linger); err != nil || fds[0].Revents != unix.POLLNVAL {
			t.Errorf("%v, %+v", err, fds)
		}
	})
}

func TestPollReturnsItsErrors(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Cur >= 1<<22 {
		t.Skip("RLIMIT_NOFILE is too high for poll to refuse anything")
	}
	both(t, func(t *testing.T, linger bool) {
		if err := Poll(make([]unix.PollFd, limit.Cur+1), linger); !errors.Is(err, unix.EINVAL) {
			t.Errorf("more descriptors than the process may have: %v", err)
		}
	})
}

// TestPollWakesWhetherItLingersOrBlocks writes at once, and long after the last span.
func TestPollWakesWhetherItLingersOrBlocks(t *testing.T) {
	both(t, func(t *testing.T, linger bool) {
		for _, late := range []bool{false, true} {
			r, w := pipe(t)
			done := make(chan error)
			go func() { done <- Poll([]unix.PollFd{{Fd: int32(r), Events: unix.POLLIN}}, linger) }()
			if late {
				nothing, _ := pipe(t)
				fds := []unix.PollFd{{Fd: int32(nothing), Events: unix.POLLIN}}
				for range 2 * Spans {
					_, _ = pollHolding(fds, Span)
				}
			}
			if _, err := unix.Write(w, []byte{1}); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestLingeringKeepsTheProcessorAndBlockingGivesItBack looks at what the runtime takes the waiter for: one that lingers is
// never in a system call.
func TestLingeringKeepsTheProcessorAndBlockingGivesItBack(t *testing.T) {
	for _, linger := range []bool{true, false} {
		r, w := pipe(t)
		spans := 0
		if linger {
			spans = math.MaxInt
		}
		done := make(chan error)
		go func() { done <- poll([]unix.PollFd{{Fd: int32(r), Events: unix.POLLIN}}, spans) }()
		state := ""
		for looks := 0; looks < 20 || !linger && state != "syscall"; looks++ {
			state = stateOf("linger.poll(")
			if linger && state == "syscall" {
				t.Error("the runtime was told of a poll that lingers")
				break
			}
			time.Sleep(time.Millisecond)
		}
		if state == "" {
			t.Error("the waiter was not found")
		}
		if _, err := unix.Write(w, []byte{1}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// stateOf returns the state of the goroutine that is in a function, as the runtime prints it; empty if there is none.
func stateOf(function string) string {
	buf := make([]byte, 1<<16)
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if _, rest, ok := strings.Cut(g, "["); ok && strings.Contains(g, function) {
			state, _, _ := strings.Cut(rest, "]")
			state, _, _ = strings.Cut(state, ",") // "syscall, 2 minutes"
			return state
		}
	}
	return ""
}

// TestTheWorldStopsWhileMoreLingerThanThereAreProcessors has the collector run under more waiters than GOMAXPROCS.
func TestTheWorldStopsWhileMoreLingerThanThereAreProcessors(t *testing.T) {
	r, w := pipe(t)
	var waiters sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		waiters.Go(func() {
			if err := Poll([]unix.PollFd{{Fd: int32(r), Events: unix.POLLIN}}, true); err != nil {
				t.Error(err)
			}
		})
	}
	for range 3 {
		runtime.GC()
	}
	if _, err := unix.Write(w, []byte{1}); err != nil {
		t.Fatal(err)
	}
	waiters.Wait()
}

func TestPollDoesNotAllocate(t *testing.T) {
	both(t, func(t *testing.T, linger bool) {
		r, w := pipe(t)
		if _, err := unix.Write(w, []byte{1}); err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(100, func() {
			fds := [1]unix.PollFd{{Fd: int32(r), Events: unix.POLLIN}}
			_ = Poll(fds[:], linger)
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}
