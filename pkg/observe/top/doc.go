// SPDX-License-Identifier: Apache-2.0

// Package top computes and draws the live statistics of an interface, for `ropewalk top`.
//
// Two samples of counters make a Frame: rates, shares, and the load balance of peers, lanes, NIC queues and CPUs. Render
// draws a frame as text. A SpreadFrame is the same for a device of `ropewalk spread attach`. The package does no I/O: package host
// reads the host's counters and package live runs the terminal. Start reading at Compare and Render.
//
// Not for other programs: it may change without notice.
package top
