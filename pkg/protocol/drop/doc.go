// SPDX-License-Identifier: Apache-2.0

// Package drop defines the reasons for which ropewalk discards packets, and
// counters by reason. The reasons are defined once, in bpf/include/drop_reasons.h, for eBPF and Go;
// reasons.go is generated from it. Every package that handles packets may import this one. It
// imports nothing.
//
// Not for other programs: it may change without notice.
package drop
