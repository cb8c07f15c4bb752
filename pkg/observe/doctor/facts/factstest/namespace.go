// SPDX-License-Identifier: Apache-2.0

// Package factstest provides a private network namespace for tests of package facts and its users.
//
// Not for other programs: it may change without notice.
package factstest

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/namespace"
)

// EnterNamespace moves the test into a network namespace of its own, with a /sys that shows it, or skips it where that is not
// permitted. The thread is never unlocked, so that both end with the test's goroutine.
func EnterNamespace(t testing.TB) {
	t.Helper()
	namespace.EnterWithMounts(t)
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("sysfs", "/sys", "sysfs", 0, ""),
	)
	if err != nil {
		t.Fatal(err)
	}
}
