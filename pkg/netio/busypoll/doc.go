// SPDX-License-Identifier: Apache-2.0

// Package busypoll waits for file descriptors with low latency while traffic
// flows, and without cost once it has stopped.
//
// A goroutine in an ordinary blocking system call releases its P (the Go scheduler's processor). When the call returns
// after the whole process has slept, acquiring a P wakes the runtime's monitor thread (sysmon). That thread then ticks
// every 20 µs for a while. A ping through a tunnel cost four futex calls and twenty short sleeps in each daemon
// (measured with strace -c). So a lane with recent traffic polls without entering the scheduler, for a spin interval at
// a time. The interval is shorter than the runtime's preemption limit of 10 ms. After a number of intervals without
// traffic the lane blocks in the ordinary way. Recent traffic is two events that follow each other closely. After a single
// message now and then, such as the report to a probe of source ports, spinning would catch nothing.
//
// The interval is as long as possible, because its end is expensive for a goroutine that is locked to its thread
// (package thread). The runtime lets another thread find the goroutine, wake its thread and sleep again. With intervals
// of 5 ms this caused half of all context switches of a ping every 10 ms.
//
// A busy poller occupies its P. GOMAXPROCS must therefore count the pollers and leave some to spare: with one P and
// sixteen pollers a garbage collection took 0.3 s. Stopping the world interrupts the poll by a signal.
//
// Start reading at Poller.
//
// Not for other programs: it may change without notice.
package busypoll
