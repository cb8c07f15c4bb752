// SPDX-License-Identifier: Apache-2.0

// Package spread selects the outer source port of each inner flow, so that the receiver's NIC distributes a tunnel over
// its queues while no flow is reordered.
//
// The sender uses the flow table and the loads (Flows, Loads); bpf/spread.bpf.c implements the same algorithm. The
// receiver makes the port plan: ports that arrive evenly on its queues (RSS, Plan). The package is pure: time is passed
// in, and it does no I/O. Start reading at Flows.Choose and Plan.
package spread
