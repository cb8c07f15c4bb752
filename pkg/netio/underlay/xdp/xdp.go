// SPDX-License-Identifier: Apache-2.0

// Package xdp is the underlay over AF_XDP: whole frames between the queues of one network device and the lanes, past the
// kernel's network stack, with an ordinary UDP port beside them for everything else.
//
// # In
//
// An XDP program (programs.Classify) gives the data messages of queue i to the AF_XDP socket of lane i. All else goes up the
// stack to the UDP sockets: handshakes, cookies, keepalives, fragments, and data messages where there is no socket, so that
// the kernel takes over by itself when one goes away. A lane takes from whichever socket has something. It copies messages into the
// caller's elements, and those of one flow and size that stand together into one, as UDP_GRO would.
//
// # Out
//
// A lane writes frames with the headers of the path that the kernel would take: route, source address, neighbour, MTU and hop
// limit are asked for over netlink, and asked for again whenever the kernel announces a change. Where the kernel would do
// more than put headers in front and hand the packet to the device, it is left to do so: runs for such targets go by the UDP
// sockets, also those for unknown neighbours, and for other devices than the one with the sockets. A VLAN upon that one is no
// other.
//
// What is sent by AF_XDP is seen by no netfilter, tc, IPsec policy or packet socket, and neither limited nor shaped by a qdisc. The
// kernel does not know that the neighbour is in use, so it is told.
//
// While a queue has an AF_XDP socket the kernel lets nobody take it away (ethtool -L gives EINVAL): that takes the Way to be another
// one first.
//
// # Order
//
// The runs of a lane leave in order, whichever way each takes: before one goes by the UDP socket, the frames before it are with the
// device. A qdisc that holds packets back can still have them overtaken when a target's way changes, which is when route or
// neighbour do. Single long datagrams would have it change all the time; so a target that anything was too long for stays with the
// UDP socket until its path changes. What SendTo and SendRun send goes by the UDP socket always.
//
// What arrives keeps its order when another Way is chosen: a lane takes what the UDP socket holds before it turns to a new AF_XDP
// socket, and an AF_XDP socket is closed when its lane has taken what was left in it, or has not come for it in 20 ms. Left are the
// packets that are on their way through the stack at that moment, and those of flows for which the kernel chooses the UDP socket
// of another lane than the device's queue has. When a device is lost, so is what its sockets hold.
package xdp
