// SPDX-License-Identifier: Apache-2.0

// Package thread locks a goroutine of the data path to its own thread, with a
// name, a short time slice and a priority.
//
// A lane needs the processor often and briefly. The scheduler (EEVDF) runs the request with the earliest deadline first.
// A thread with short slices therefore waits less for each, and gets no larger share. With the default of some
// milliseconds a lane would wait that long behind a busy application. Linux has per-thread slices since 6.12 (commit
// 857b158dc5e8, "sched/eevdf: Use sched_attr::sched_runtime to set request/slice suggestion"). Older kernels accept the
// value and ignore it.
//
// A kernel's own network path has priority because it runs in interrupts. Without priority, an unlimited sender consumes
// the processor time that carrying its packets needs (Mogul and Ramakrishnan, "Eliminating receive livelock in an
// interrupt-driven kernel", 1996).
//
// The only system calls are prctl, sched_getattr and sched_setattr on the calling thread. Start reading at Lock.
//
// Not for other programs: it may change without notice.
package thread
