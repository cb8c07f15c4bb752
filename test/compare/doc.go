// SPDX-License-Identifier: Apache-2.0

// Package compare measures the whole path of ropewalk against that of wireguard-go, in one process and without a kernel
// in between: elements appear at an in-memory TUN and leave as sealed datagrams at an in-memory network (BenchmarkTX),
// the other way (BenchmarkRX), or from one device's TUN to another device's (BenchmarkBoth).
//
//	go test -run '^$' -bench . ./test/compare
//	for i in $(seq 6); do go test -run '^$' -bench . ./test/compare; done | benchstat -col /impl -
//
// Both implementations are whole devices with all their timers, configured as a user would, on a session that a real
// handshake made. Both get their edges from the same ring (queue), which takes and gives as many elements per call as an
// implementation asks for, and copies each element once, where the kernel would. The differences are those that each
// would find on Linux:
//
//   - ropewalk gets TSO trains behind a virtio-net header, and coalesced runs of datagrams. It has to cut the trains and
//     compute the checksums itself, to verify them on the way in, and to join what it writes.
//   - ropewalk-singly gets the same packets one by one, as on a host without offloads.
//   - wireguard-go gets packets one by one, up to 128 in one call each way (conn.IdealBatchSize). On Linux its own
//     edges do what ropewalk does inside: cut TSO trains, join packets for the TUN, and copy messages into one buffer for
//     UDP GSO. Here nobody does, and that is in wireguard-go's favour. Of its buffers, headers and queues nothing is spared.
//
// Small packets (64 B) come singly to all: no kernel joins them for certain.
//
// ropewalk has as many lanes as GOMAXPROCS, and the flows are dealt out to them as its steering does. wireguard-go has
// one TUN queue and one receiver, and spreads sealing and opening over all cores itself.
//
// Figures: ns/packet by the wall clock; cpu-ns/packet by the CPU time of the process, which counts all its cores and is
// the better figure on a machine that others use; Gbit/s of inner packets.
package compare
