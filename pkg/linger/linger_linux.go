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
// The price is that the processor is not free for others meanwhile: GOMAXPROCS must count those who linger, with some to
// spare. Stopping the world interrupts the poll by signal, and waits for one span at worst.
package linger

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Span is how long one poll holds its processor.
	Span = 5 * time.Millisecond
	// Spans is how many of them pass without traffic before a waiter blocks the ordinary way.
	Spans = 20
)

// Poll blocks until one of fds is ready, and tells in their Revents which, as poll(2) does. With linger it holds its
// processor at first, as the package comment says. It allocates nothing. The error is one of poll's, never EINTR.
func Poll(fds []unix.PollFd, linger bool) error {
	spans := 0
	if linger {
		spans = Spans
	}
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
