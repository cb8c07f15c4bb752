// SPDX-License-Identifier: Apache-2.0

// Package linger waits for a descriptor in a way that keeps latency down for as long as traffic flows, and costs nothing
// once it has stopped.
//
// A goroutine in an ordinary blocking system call hands its processor back to the Go runtime. When the call returns, and
// the process has slept meanwhile, taking one again wakes the runtime's monitor thread, which then ticks every 20 µs for
// a while: for a ping through a tunnel that came to four futex calls and twenty naps in each daemon (strace -c). So a
// lane that has just had traffic polls without telling the runtime, for a Span at a time, which is shorter than what the
// runtime takes for hogging (10 ms); after Spans of them without traffic it blocks the ordinary way.
//
// A span is as long as it may be, for its end is dear to a goroutine that is bound to its thread (package thread): the runtime has
// another thread find it, wake its own, and sleep again. With spans of 5 ms, that was half of all context switches of a ping every 10 ms.
//
// The price is that the processor is not free for others meanwhile: GOMAXPROCS must count those who linger, with some to
// spare: with one processor and sixteen who linger, a garbage collection took 0.3 s. Stopping the world interrupts the poll
// by signal.
package linger

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Span is how long one poll holds its processor.
	Span = 9 * time.Millisecond
	// Spans is how many of them pass without traffic before a waiter blocks the ordinary way.
	Spans = 11
)

// Poll blocks until one of fds is ready, and tells in their Revents which, as poll(2) does. With linger it holds its
// processor at first, as the package comment says. It allocates nothing. The error is one of poll's, never EINTR.
func Poll(fds []unix.PollFd, linger bool) error {
	if linger {
		return poll(fds, Spans)
	}
	return poll(fds, 0)
}

// poll holds its processor for so many spans, and then blocks.
func poll(fds []unix.PollFd, spans int) error {
	for range spans {
		n, errno := pollHolding(fds, Span)
		switch {
		case errno != 0 && errno != unix.EINTR:
			return errno
		case n > 0:
			return nil
		}
		runtime.Gosched() // a new time slice, and whatever else waits for this processor
	}
	for {
		n, err := unix.Poll(fds, -1)
		switch {
		case err != nil && err != unix.EINTR:
			return err
		case n > 0:
			return nil
		}
	}
}
