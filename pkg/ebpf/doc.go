// SPDX-License-Identifier: Apache-2.0

// Package ebpf groups the packages of the eBPF programs in bpf/ and of their attachment.
//
//   - programs: the compiled programs (steer, spread with its counterpart gather, classify, guard), their maps and settings
//   - hook: attaches and pins a program to tc, tcx or XDP
//   - spreader: spreads and gathers the packets of a WireGuard tunnel of another implementation, such as the kernel's
//   - guard: counts, and may drop, what leaves a node of a mesh beside its tunnel
//
// Packages here do not import the data plane or the tunnel. They import protocol and netio. Begin with spreader.Host, or with bpf/spread.bpf.c.
package ebpf
