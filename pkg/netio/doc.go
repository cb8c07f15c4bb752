// SPDX-License-Identifier: Apache-2.0

// Package netio groups the interfaces to the operating system's network: the interfaces that carry
// packets, and the network's settings.
//
//   - tun and underlay: the two batch-first interfaces between lanes and the kernel. Each has a
//     contract, an in-memory fake and a contract test; underlay/udp and underlay/xdp implement
//     the outer one
//   - xsk: AF_XDP sockets, rings and UMEM
//   - hostnet: addresses, routes, rules and NIC settings over netlink and ethtool
//   - kernel: the release of the running Linux, for limits that cannot be probed
//   - toobig: the ICMP errors that report the MTU of a path
//   - connlimit: a bound on the connections of a server
//   - atomicfile: files that a crash leaves whole
//   - busypoll, thread: busy polling of a descriptor, and threads with their own scheduling
//
// Packages here know no WireGuard and import only protocol. Begin with tun.Queue and underlay.Lane.
package netio
