// SPDX-License-Identifier: Apache-2.0

// Package compare benchmarks ropewalk against wireguard-go, in one process and without a kernel in
// between. Packets enter at an in-memory TUN and leave as sealed datagrams on an in-memory network
// (BenchmarkTX), or take the opposite direction (BenchmarkRX). In BenchmarkBoth they go from one
// device's TUN to another device's.
//
//	go test -run '^$' -bench . ./test/compare
//	for i in $(seq 6); do go test -run '^$' -bench . ./test/compare; done | benchstat -col /impl -
//
// Both implementations are complete devices with all their timers and the default configuration.
// Their sessions come from a real handshake. The in-memory TUN and network are the same ring for
// both (queue.go). It transfers as many elements per call as an implementation requests, and
// copies each element once, as the kernel would. The implementations differ as on Linux:
//
//   - ropewalk gets TSO trains with a virtio-net header, and coalesced datagrams. It splits the trains and computes the
//     checksums itself. When it receives, it verifies checksums and merges packets.
//   - ropewalk-singly gets the same packets one at a time, as on a host without offloads.
//   - wireguard-go gets packets one at a time, up to 128 per call (conn.IdealBatchSize). On Linux its TUN and UDP code also splits
//     TSO trains, merges packets for the TUN, and copies messages into one buffer for UDP GSO. This benchmark does not include
//     that work, which favours wireguard-go. Its buffers, headers and queues are included.
//
// Small packets (64 B) are never coalesced, since no kernel is certain to do so.
//
// ropewalk has as many lanes as GOMAXPROCS, and flows are distributed over them as by its steering program. wireguard-go has one
// TUN queue and one receiver, and distributes sealing and opening over all cores itself.
//
// The metric ns/packet is wall-clock time, and cpu-ns/packet is CPU time of the process on all its
// cores. Gbit/s counts inner packets. On a machine with other load, cpu-ns/packet is the most
// reliable.
//
// Three fuzz targets compare decisions: FuzzSameDecision, FuzzSameAnswers and
// FuzzSameConfiguration. The first compares which packets of an arbitrary sequence of data
// messages are delivered. The second compares which handshake messages among them are answered
// (TestKernelMakesSameDecisions asks the kernel's WireGuard). The third compares which set
// operations of the control protocol are accepted, and the resulting configuration. Differences
// that are intended are not generated, and named where they would be.
package compare
