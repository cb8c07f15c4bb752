// SPDX-License-Identifier: Apache-2.0

// Package wire holds the layouts of WireGuard's four messages (WireGuard paper, §5.4): sizes,
// offsets and accessors over received bytes. It also holds the control messages between two
// ropewalks: hello, probe and check (control.go).
//
// It is pure, and validates only type and length. All integers are little-endian. Start reading at Classify.
//
// Not for other programs: it may change without notice.
package wire
