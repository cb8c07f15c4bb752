// SPDX-License-Identifier: Apache-2.0

// Package handover is the protocol by which a daemon (the predecessor) hands a running tunnel to
// another process (the successor). It has the state of the tunnel, its descriptors, and the
// messages that decide which of the two serves it.
//
// Package daemon calls it, on both sides. This package neither stops nor starts a tunnel. Start
// reading with the protocol at the top of conn.go. state.go has the format of the state, netns.go
// the check that both processes are in one network namespace.
//
// Not for other programs: it may change without notice.
package handover
