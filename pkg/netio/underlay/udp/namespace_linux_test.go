// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// enterNamespace moves the test's goroutine into a new network namespace with a loopback device. The thread ends with
// the goroutine, and the namespace with its last socket. Without root the test uses the host's loopback.
func enterNamespace(t testing.TB) (private bool) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return false
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	return true
}

// requireNamespace is enterNamespace for tests that change the namespace.
func requireNamespace(t *testing.T) {
	t.Helper()
	if !enterNamespace(t) {
		t.Skip("needs root (CAP_SYS_ADMIN) for a network namespace")
	}
}
