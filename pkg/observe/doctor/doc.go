// SPDX-License-Identifier: Apache-2.0

// Package doctor checks whether a host is configured for full ropewalk speed and
// reports how to fix each problem.
//
// Its checks are pure functions over a snapshot of the host (package facts). Examine runs them. Apply makes the changes that
// are safe while packets flow, and Undo reverts them. Start reading at Checks.
//
// Not for other programs: it may change without notice.
package doctor
