// SPDX-License-Identifier: Apache-2.0

// Package namespace moves tests into namespaces of their own. It imports nothing of ropewalk, so every package's tests can use it.
package namespace

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Enter moves the test into a new network namespace.
func Enter(tb testing.TB) {
	tb.Helper()
	unshare(tb, unix.CLONE_NEWNET)
}

// EnterWithMounts moves the test into new network and mount namespaces.
func EnterWithMounts(tb testing.TB) {
	tb.Helper()
	unshare(tb, unix.CLONE_NEWNET|unix.CLONE_NEWNS)
}

// unshare skips the test if the process may not create namespaces. The thread stays locked to the
// test's goroutine, so it ends with the goroutine, as do the namespaces.
func unshare(tb testing.TB, flags int) {
	tb.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(flags); err != nil {
		runtime.UnlockOSThread()
		tb.Skipf("needs root for namespaces: %v", err)
	}
}
