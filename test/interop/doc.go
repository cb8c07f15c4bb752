// SPDX-License-Identifier: Apache-2.0

// Package interop holds tests that let the ropewalk binary talk to other WireGuards over a cable between two network
// namespaces: to the kernel's, to wireguard-go as a process, and to itself. All of them are driven from outside, through
// the UAPI socket, generic netlink and real sockets, as a user's programs would do it.
//
// They need root and /dev/net/tun, nothing else: no ip, wg or iperf3, so that they also run in the virtual machines of
// test/kernels, which is where most kernels without WireGuard on the developer's machine are covered. The environment:
//
//	ROPEWALK_BIN               the binary to test; built from cmd/ropewalk when empty
//	WIREGUARD_GO_BIN           wireguard-go; built from the module in go.mod when empty
//	ROPEWALK_INTEROP_LONG=1    also the tests that wait for WireGuard's two-minute timers
//	ROPEWALK_INTEROP_STRICT=1  in a virtual machine: a kernel without WireGuard is a failure, not a skip, and is what ropewalk talks to
//	ROPEWALK_INTEROP_CONTROL=1 also the kernel against wireguard-go: when that fails too, the test is wrong
package interop
