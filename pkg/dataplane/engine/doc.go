// SPDX-License-Identifier: Apache-2.0

// Package engine is the fast path. Its goroutines move trains between the queues
// of one TUN device and the lanes of one underlay port. It knows sessions and routes, but no
// handshakes, timers or configuration. Everything except data messages of live sessions goes to the
// Control and SlowPath interfaces, which package device implements.
//
// Only package device calls it. engine.go starts and ends the two directions of each lane, which are packages of their own:
// internal/send and internal/receive, over internal/lane. api.go names what device uses of these.
//
// Concurrency: each lane has one transmit and one receive goroutine. They share no lock; sessions, routes and peers are
// read through atomic pointers. In steady state neither allocates.
//
// Not for other programs: it may change without notice.
package engine
