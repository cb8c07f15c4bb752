// SPDX-License-Identifier: Apache-2.0

// Package xdp is the underlay over AF_XDP. It carries whole frames between the
// queues of one network device and the lanes, and bypasses the kernel's network stack. An ordinary
// UDP port beside it carries everything else. Begin reading in port.go.
//
// # Receiving
//
// An XDP program (programs.Classify) redirects the data messages of queue i to the AF_XDP socket
// of lane i. Everything else goes through the stack to the UDP sockets: handshakes, cookies,
// keepalives and fragments. Data messages of a queue without a socket also go through the stack:
// the kernel takes over by itself when a socket is closed. A lane receives from both of its
// sockets. It copies messages into the caller's elements, and merges adjacent messages of one flow
// and size into one element, as UDP_GRO does.
//
// # Sending
//
// A lane writes frames with the headers that the kernel would use. Route, source address, neighbour, MTU and hop limit
// come from netlink, and are requested again when the kernel announces a change. Runs go through the UDP socket where the
// kernel would do more than prepend headers and hand the packet to the device. They also do so for unknown neighbours, and
// for routes through another device than the one with the AF_XDP sockets. A VLAN on top of that device does not count as another device.
//
// Netfilter, tc, IPsec policies and packet sockets do not see packets that AF_XDP sends, and no qdisc limits or shapes them.
// The kernel does not notice that the neighbour is in use, so the supervisor confirms it (NTF_USE).
//
// While a queue has an AF_XDP socket, the kernel refuses to remove the queue (ethtool -L fails with EINVAL). Choose another Binding first.
//
// # Order
//
// The runs of a lane leave in order, whichever path each takes. Before a run goes through the UDP
// socket, the device has the frames before it. A qdisc that delays packets can still reorder them
// when a target's path changes, that is, when its route or neighbour changes. Single long
// datagrams would change the path all the time. Therefore a target that had a datagram longer than
// its path allows stays with the UDP socket until the path changes. SendTo and SendRun always use
// the UDP socket.
//
// Received packets keep their order when another Binding is chosen. A lane empties the UDP socket
// before it turns to a new AF_XDP socket. An AF_XDP socket is closed when its lane has emptied it,
// or after 20 ms. Two kinds of packets can still be reordered. The first are packets in the stack
// at that moment. The second are packets of flows for which the kernel chooses the UDP socket of
// another lane than the device's queue has. When a device is lost, the packets in its sockets are
// lost too.
//
// Not for other programs: it may change without notice.
package xdp
