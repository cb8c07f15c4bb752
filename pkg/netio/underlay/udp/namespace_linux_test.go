// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"runtime"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
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

// slowLoopback is requireNamespace, and limits the loopback device to a rate at which next to nothing leaves during a test. The
// function, or the test's end, removes the limit: a packet that waits holds its socket, so the namespace would live for an hour, and
// answers that wait there fill the ICMP socket of their CPU, which all namespaces share (icmp_init in net/ipv4/icmp.c).
func slowLoopback(t *testing.T) (remove func()) {
	t.Helper()
	requireNamespace(t)
	lo, err := netlink.LinkByName("lo")
	expect.NoError(t, err)
	q := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       1000, Buffer: netlink.Xmittime(1000, 4000), Limit: 1 << 30, // all in bytes
	}
	if err := netlink.QdiscAdd(q); err != nil {
		t.Skipf("needs the tbf qdisc: %v", err)
	}
	remove = sync.OnceFunc(func() { expect.NoError(t, netlink.QdiscDel(q)) })
	t.Cleanup(remove)
	return remove
}
