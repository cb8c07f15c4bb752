// SPDX-License-Identifier: Apache-2.0

// Package interop tests the ropewalk binary against other WireGuard implementations over a veth pair between two network
// namespaces. Its peers are the kernel's WireGuard, wireguard-go as a process, and ropewalk itself. The tests use only the
// external interfaces: the UAPI socket, generic netlink and real sockets.
//
// The tests need root and /dev/net/tun, and no programs such as ip, wg or iperf3. They therefore also run in the virtual
// machines of test/kernels, which have in-kernel WireGuard even if the developer's machine does not.
//
// TestTunnelAccountsForPacketsOnImpairedNetwork has a network with loss and jitter (netem) between
// the hosts, which impairedNetwork records. It compares the packets that the tunnels send, receive
// and count with the packets that the network carried and dropped. It depends on no rate and no
// time, and skips on a kernel without netem. The environment:
//
//	ROPEWALK_BIN               the binary to test; built from cmd/ropewalk when empty
//	WIREGUARD_GO_BIN           wireguard-go; built from the module in go.mod when empty
//	ROPEWALK_INTEROP_LONG=1    also runs the tests that wait for WireGuard's two-minute timers
//	ROPEWALK_INTEROP_STRICT=1  set in virtual machines: the peer is the kernel, and a kernel without WireGuard fails the test
//	ROPEWALK_INTEROP_NICS=1    set in virtual machines: runs the tests that need two NICs
//	ROPEWALK_INTEROP_CONTROL=1 also tests the kernel against wireguard-go: if that fails too, the test is wrong
package interop
