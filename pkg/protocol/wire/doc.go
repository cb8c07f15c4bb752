// SPDX-License-Identifier: Apache-2.0

// Package wire holds the layouts of WireGuard's four messages: sizes, offsets and accessors over received bytes
// (WireGuard paper, §5.4), and the layout of ropewalk's hello.
//
// It is pure, and validates only type and length. All integers are little-endian. Start reading at Classify.
package wire
