// SPDX-License-Identifier: Apache-2.0

// Package spread tests spreading between two network namespaces. The cable between them has as many queues as a NIC, and
// selects them as a NIC does. Each flow of a tunnel must arrive on a queue of its own, and in order. The tunnel is the
// kernel's WireGuard with `ropewalk spread attach` at both ends, or `ropewalk run`. For comparison, one test selects a new
// source port for each packet.
//
// The tests identify a flow on the wire, where it is encrypted, by the size of its packets. They do not measure speed. A
// round of packets begins only after the previous one has arrived, so that no packet is lost.
//
// The tests need root and eBPF. Tests that need the kernel's WireGuard or netem run in the virtual
// machines of test/kernels. The environment variables are as in test/interop.
package spread
