// SPDX-License-Identifier: Apache-2.0

// Package hook attaches eBPF programs to network devices so that they outlive
// the process. It uses tcx links if the kernel supports them (Linux 6.6), filters on a clsact
// qdisc otherwise, and XDP links. Attachments are pinned in a BPF file system, which is their
// only record. The package does not depend on the programs' purpose.
//
// Every function works in the network namespace of the calling thread and keeps no state. The caller must prevent two
// processes from changing the same hook at the same time.
//
// Begin with Hook and its methods Attach, Status and Detach.
//
// Not for other programs: it may change without notice.
package hook
