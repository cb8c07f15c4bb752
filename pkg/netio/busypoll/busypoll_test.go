// SPDX-License-Identifier: Apache-2.0

package busypoll

import (
	"errors"
	"math"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

func both(t *testing.T, f func(t *testing.T, p *Poller)) {
	for name, hot := range map[string]bool{"spinning": true, "blocking": false} {
		t.Run(name, func(t *testing.T) { f(t, &Poller{Busy: hot, hot: hot}) })
	}
}

// TestPollerSpinsAfterFrequentEvents: an event now and then, such as a report, must not have the lane spin for 100 ms each time.
func TestPollerSpinsAfterFrequentEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := pipe(t)
		fds := []unix.PollFd{{Fd: int32(r), Events: unix.POLLIN}}
		if _, err := unix.Write(w, []byte{1}); err != nil {
			t.Fatal(err)
		}
		p := Poller{Busy: true}
		for i, step := range []struct {
			pause time.Duration // before the event
			hot   bool
		}{{0, false}, {time.Second, false}, {recent, false}, {recent - 1, true}, {time.Hour, true}} {
			time.Sleep(step.pause)
			if err := p.Poll(fds); err != nil || p.hot != step.hot {
				t.Errorf("event %d: got error %v, hot %v, want hot %v", i, err, p.hot, step.hot)
			}
		}
		var never Poller
		for range 2 {
			if err := never.Poll(fds); err != nil || never.hot {
				t.Errorf("got error %v, hot %v of a poller that is not busy", err, never.hot)
			}
		}
	})
}

func TestPollReportsReadyDescriptor(t *testing.T) {
	both(t, func(t *testing.T, p *Poller) {
		first, _ := pipe(t)
		second, w := pipe(t)
		if _, err := unix.Write(w, []byte{1}); err != nil {
			t.Fatal(err)
		}
		fds := []unix.PollFd{{Fd: int32(first), Events: unix.POLLIN}, {Fd: int32(second), Events: unix.POLLIN}}
		if err := p.Poll(fds); err != nil || fds[0].Revents != 0 || fds[1].Revents != unix.POLLIN {
			t.Errorf("got error %v, %+v, want no error", err, fds)
		}
	})
}

func TestPollReportsBadDescriptor(t *testing.T) {
	both(t, func(t *testing.T, p *Poller) {
		fds := []unix.PollFd{{Fd: 1 << 30, Events: unix.POLLIN}}
		if err := p.Poll(fds); err != nil || fds[0].Revents != unix.POLLNVAL {
			t.Errorf("got error %v, %+v, want no error", err, fds)
		}
	})
}

func TestPollReturnsItsErrors(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Cur >= 1<<22 {
		t.Skip("RLIMIT_NOFILE is too high to exceed")
	}
	both(t, func(t *testing.T, p *Poller) {
		if err := p.Poll(make([]unix.PollFd, limit.Cur+1)); !errors.Is(err, unix.EINVAL) {
			t.Errorf("more descriptors than the process may have: got error %v, want %v", err, unix.EINVAL)
		}
	})
}

func TestPollForReturnsWithoutEvent(t *testing.T) {
	r, w := pipe(t)
	fds := []unix.PollFd{{Fd: int32(r), Events: unix.POLLIN}}
	if err := PollFor(fds, time.Millisecond); err != nil || fds[0].Revents != 0 {
		t.Errorf("got error %v, %+v, want no error", err, fds)
	}
	if _, err := unix.Write(w, []byte{1}); err != nil {
		t.Fatal(err)
	}
	if err := PollFor(fds, time.Hour); err != nil || fds[0].Revents != unix.POLLIN {
		t.Errorf("got error %v, %+v, want no error", err, fds)
	}
}

// TestPollWakesWhileSpinningOrBlocking writes at once, and long after the last spin.
func TestPollWakesWhileSpinningOrBlocking(t *testing.T) {
	both(t, func(t *testing.T, p *Poller) {
		for _, late := range []bool{false, true} {
			r, w := pipe(t)
			done := make(chan error)
			go func() { done <- p.Poll([]unix.PollFd{{Fd: int32(r), Events: unix.POLLIN}}) }()
			if late {
				nothing, _ := pipe(t)
				fds := []unix.PollFd{{Fd: int32(nothing), Events: unix.POLLIN}}
				for range 2 * maxSpins {
					_, _ = pollRaw(fds, spinInterval)
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

// TestSpinningKeepsProcessorAndBlockingReleasesIt reads the goroutine's state: while it spins it is never in "syscall".
func TestSpinningKeepsProcessorAndBlockingReleasesIt(t *testing.T) {
	for _, busy := range []bool{true, false} {
		r, w := pipe(t)
		fds := []unix.PollFd{{Fd: int32(r), Events: unix.POLLIN}}
		done, waiting := make(chan error), reflect.ValueOf(block)
		if busy {
			waiting = reflect.ValueOf(spin)
		}
		go func() {
			if busy {
				_, err := spin(fds, math.MaxInt)
				done <- err
				return
			}
			done <- block(fds)
		}()
		state := ""
		for checks := 0; checks < 20 || !busy && state != "syscall"; checks++ {
			state = stateOf(runtime.FuncForPC(waiting.Pointer()).Name() + "(")
			if busy && state == "syscall" {
				t.Error("the scheduler saw a system call while spinning")
				break
			}
			time.Sleep(time.Millisecond)
		}
		if state == "" {
			t.Error("the polling goroutine was not found")
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

// TestGarbageCollectionRunsWithManyBusyPollers runs the garbage collector with more busy pollers than GOMAXPROCS.
func TestGarbageCollectionRunsWithManyBusyPollers(t *testing.T) {
	r, w := pipe(t)
	var waiters sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		waiters.Go(func() {
			if err := (&Poller{Busy: true, hot: true}).Poll([]unix.PollFd{{Fd: int32(r), Events: unix.POLLIN}}); err != nil {
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
	both(t, func(t *testing.T, p *Poller) {
		r, w := pipe(t)
		if _, err := unix.Write(w, []byte{1}); err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(100, func() {
			fds := [1]unix.PollFd{{Fd: int32(r), Events: unix.POLLIN}}
			_ = p.Poll(fds[:])
		}); n != 0 {
			t.Errorf("got %v allocations, want 0", n)
		}
	})
}
