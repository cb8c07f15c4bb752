// SPDX-License-Identifier: Apache-2.0

// Package spread selects the outer source port of each inner flow. So the receiver's NIC
// distributes a tunnel over its queues, while no flow is reordered.
//
// The sender uses the flow table (Flows) and the bytes that recently left from each port (Loads). bpf/include/lane.h is the
// same algorithm in C: a test of pkg/ebpf/programs requires the same choices. The receiver makes the port plan (RSS, Plan):
// a list of source ports whose datagrams arrive evenly on its queues. The sender learns it from a hello. An Order puts the messages
// of a sprayed flow back into order. The package is pure: time is passed in, and it does no I/O. Start reading at Flows.Choose and Plan.
//
// Not for other programs: it may change without notice.
package spread
