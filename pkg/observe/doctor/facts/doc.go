// SPDX-License-Identifier: Apache-2.0

// Package facts takes the snapshot of a host that package doctor evaluates. It has kernel features
// (by probe), the privileges of the process, underlay NICs, CPUs, sysctls, sockets, the clock and
// the running tunnels.
//
// It changes nothing that outlives the call and needs no privilege: a value that cannot be read is a Result with an error.
// Start reading at Gather and Facts.
//
// Not for other programs: it may change without notice.
package facts
