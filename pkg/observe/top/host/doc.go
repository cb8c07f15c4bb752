// SPDX-License-Identifier: Apache-2.0

// Package host reads the host's counters for package top: CPU times (/proc/stat),
// NET_RX softirqs (/proc/softirqs), IRQs (/proc/interrupts) and the NICs' queue counters (netlink
// qstats, ethtool -S).
//
// Counters that the kernel, the driver or a container does not provide are missing from the result, without an error.
// Start reading at Reader.Read.
//
// Not for other programs: it may change without notice.
package host
