// SPDX-License-Identifier: Apache-2.0

// Package xsk is AF_XDP sockets: Ethernet frames between one queue of a network
// device and memory that the process shares with the kernel (the UMEM), bypassing the kernel's
// network stack.
//
// It moves frames in batches and allocates nothing on the data path. It knows neither the contents of the frames nor the
// XDP program that redirects them: the program's owner puts Socket.FD into its XSKMAP. Start reading at Socket and Open.
//
// # Two halves
//
// A Socket has two halves, each for one goroutine (they may be the same one), which share no memory that is written:
//
//	receive:   Receive → read Frame in place → Refill          poll(FD) and WakeRx between batches
//	transmit:  Reserve → write Frame in place → Submit → WakeTx
//
// Each half has its own frames. So one cannot starve the other, and nothing is locked. Every ring has an entry for all
// frames of its half, so no ring ever overflows. Frames are passed by address, and neither the caller's nor the kernel's
// addresses are trusted. An array of one byte per frame records the owner. An address that does not fit is counted and
// ignored, so a mistake never gives a frame two owners.
//
// # One UMEM per Socket
//
// The kernel lets sockets of several queues share one UMEM (XDP_SHARED_UMEM), which helps programs
// that forward frames between queues without a copy. A lane moves packets between its queue and
// its TUN queue, so sharing would not help. It would need a common pool of frames (with a lock, or
// a partition, which amounts to separate UMEMs). It would also need one mode and one set of
// options for all, and an order in which sockets close.
//
// # What sent frames bypass
//
// Sent frames go directly to the driver: no qdisc, tc, netfilter or packet socket sees them. They leave by the transmit
// queue with the Socket's queue number.
//
// Not for other programs: it may change without notice.
package xsk
