// SPDX-License-Identifier: Apache-2.0

package tun_test

import (
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/test/expect"
)

// queueLen returns the length of an interface's queues.
func queueLen(t *testing.T, name string) int {
	t.Helper()
	l, err := netlink.LinkByName(name)
	expect.NoError(t, err)
	return l.Attrs().TxQLen
}

// overflow sends five packets more than the only queue of d holds, and returns what d counts.
func overflow(t *testing.T, d tun.Device) uint64 {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	expect.NoError(t, err)
	defer unix.Close(fd)
	for range queueLen(t, d.Name()) + 5 {
		expect.NoError(t, unix.Sendto(fd, make([]byte, 100), 0, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{10, 99, 0, 2}}))
	}
	return d.(tun.DropCounter).QueueDrops()
}

// TestFullQueueDropsAreCountedSinceOpen opens a persistent interface again, whose counter the kernel keeps, and moves it.
func TestFullQueueDropsAreCountedSinceOpen(t *testing.T) {
	n := newNamespaces(t)
	c := tun.Config{Name: "rw0", Persist: true, QueueLen: 10}
	d := open(t, c)
	t.Cleanup(func() { _ = tun.Remove(c.Name) })
	newHost(t, d)
	if got := overflow(t, d); got != 5 {
		t.Fatalf("%d drops are counted, want 5", got)
	}
	expect.NoError(t, d.Close())
	d = open(t, c)
	if got := overflow(t, d); got != 5 {
		t.Fatalf("%d drops are counted after another Open, want 5", got)
	}
	n.move(n.origin, n.otherNS)
	if got := d.(tun.DropCounter).QueueDrops(); got != 5 {
		t.Errorf("%d drops are counted in another namespace, want 5", got)
	}
}
