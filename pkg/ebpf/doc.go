// SPDX-License-Identifier: Apache-2.0

// Package ebpf groups the packages of the eBPF programs in bpf/ and of their attachment.
//
//   - programs: the compiled programs (steer, spread, gather, classify), their maps and settings
//   - hook: attaches and pins a program to tc, tcx or XDP
//   - spreader: spread and gather in front of a WireGuard that ropewalk does not run
//
// Packages here know no running tunnel. They import protocol and netio. Begin with spreader.Host, or with bpf/spread.bpf.c.
package ebpf
