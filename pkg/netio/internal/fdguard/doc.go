// SPDX-License-Identifier: Apache-2.0

// Package fdguard keeps a file descriptor open while its user is in a system call on it.
//
// It does no I/O itself: a closing goroutine wakes the user and then waits for it. Start reading at Guard.
package fdguard
