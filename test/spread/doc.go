// SPDX-License-Identifier: Apache-2.0

// Package spread holds the tests of what spreading is for: between two network namespaces whose cable has as many queues
// as a NIC and chooses them as one does, each flow of a tunnel arrives on a queue of its own, and in order. The tunnel is
// the kernel's WireGuard with `ropewalk spread attach` at both ends, or `ropewalk run`. Beside it runs what others tried:
// a source port for each packet.
//
// Flows are told apart on the wire, encrypted, by the size of their packets. Nothing here measures speed, and what is
// counted is sent in step: no round begins before the one before it has arrived, so that nothing is ever lost.
//
// The tests need root and eBPF. Those with the kernel's WireGuard and with netem run in the machines of test/kernels.
// The environment is that of test/interop.
package spread
