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

// overflow sends n packets more than the only queue of d holds, and returns n.
func overflow(t *testing.T, d tun.Device, n int) uint64 {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	expect.NoError(t, err)
	defer unix.Close(fd)
	for range queueLen(t, d.Name()) + n {
		expect.NoError(t, unix.Sendto(fd, make([]byte, 100), 0, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{10, 99, 0, 2}}))
	}
	return uint64(n)
}

// TestFullQueueDropsAreThoseOfTheInterface moves an interface, hands it over, closes it and opens it again: the kernel keeps its counter.
func TestFullQueueDropsAreThoseOfTheInterface(t *testing.T) {
	n := newNamespaces(t)
	c := tun.Config{Name: "rw0", Persist: true}
	d := open(t, c)
	t.Cleanup(func() { _ = tun.Remove(c.Name) })
	expect.NoError(t, netlink.LinkSetTxQLen(newHost(t, d).link, 10))
	expectDrops := func(when string, d tun.Device, want uint64) {
		t.Helper()
		if got := d.(tun.DropCounter).QueueDrops(); got != want {
			t.Errorf("%s: %d drops are counted, want %d", when, got, want)
		}
	}
	expectDrops("with a full queue", d, overflow(t, d, 5))
	n.move(n.origin, n.otherNS)
	expectDrops("in another namespace", d, 5)
	n.move(n.other, n.originNS)
	expectDrops("back again", d, 5)
	next := adopt(t, d.(tun.HandoverDevice))
	expectDrops("closed", d, 5)
	expectDrops("handed over", next, 5)
	expect.NoError(t, next.Close())
	d = open(t, c)
	newHost(t, d)
	overflow(t, d, 3)
	expectDrops("opened again", d, 8)
}

func TestQueueLengthSetByHandIsKept(t *testing.T) {
	enterNamespace(t)
	c := tun.Config{Name: "rw0", Persist: true, Queues: 2}
	t.Cleanup(func() { _ = tun.Remove(c.Name) })
	for _, want := range []int{tun.QueueLen(2), 77} {
		d := open(t, c)
		if got := queueLen(t, c.Name); got != want {
			t.Errorf("the queue holds %d, want %d", got, want)
		}
		l, err := netlink.LinkByName(c.Name)
		expect.NoError(t, err)
		expect.NoError(t, netlink.LinkSetTxQLen(l, 77))
		expect.NoError(t, d.Close())
	}
}
