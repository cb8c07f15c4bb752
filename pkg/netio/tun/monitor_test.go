// SPDX-License-Identifier: Apache-2.0

package tun_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/test/expect"
)

// namespaces are the test's network namespace and a second one, each with a netlink socket.
type namespaces struct {
	t             *testing.T
	origin, other *netlink.Handle
	originNS      netns.NsHandle
	otherNS       netns.NsHandle
}

// newNamespaces makes the two namespaces, both with IPv6. Only the returned value keeps the other one alive.
func newNamespaces(t *testing.T) *namespaces {
	t.Helper()
	enterNamespace(t)
	r := &namespaces{t: t}
	var err error
	r.originNS, err = netns.Get()
	expect.NoError(t, err)
	r.origin = r.enableIPv6(r.originNS)
	r.otherNS, err = netns.New()
	expect.NoError(t, err)
	r.other = r.enableIPv6(r.otherNS)
	expect.NoError(t, netns.Set(r.originNS))
	t.Cleanup(r.close)
	return r
}

// enableIPv6 enables IPv6 in the calling thread's namespace ns.
func (n *namespaces) enableIPv6(ns netns.NsHandle) *netlink.Handle {
	n.t.Helper()
	err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("0"), 0)
	if err != nil && !os.IsNotExist(err) {
		n.t.Fatal(err)
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	expect.NoError(n.t, err)
	return h
}

// closeOther releases the other namespace, as if its last process had exited.
func (n *namespaces) closeOther() {
	if n.otherNS.IsOpen() {
		n.other.Close()
		n.otherNS.Close()
	}
}

func (n *namespaces) close() {
	n.closeOther()
	if n.originNS.IsOpen() {
		n.origin.Close()
		n.originNS.Close()
	}
}

func (n *namespaces) link(h *netlink.Handle) netlink.Link {
	n.t.Helper()
	l, err := h.LinkByName("rw0")
	expect.NoError(n.t, err)
	return l
}

func (n *namespaces) move(from *netlink.Handle, to netns.NsHandle) {
	n.t.Helper()
	expect.NoError(n.t, from.LinkSetNsFd(n.link(from), int(to)))
}

func TestDeviceClosesWhenItsNamespaceEnds(t *testing.T) {
	newNamespaces(t).close() // the first sockets make the runtime open descriptors of its own
	before := openFiles(t)
	r := newNamespaces(t)
	d := open(t, tun.Config{Name: "rw0"})
	r.move(r.origin, r.otherNS)
	expect.NoError(t, r.other.LinkSetUp(r.link(r.other)))
	expect.NoError(t, r.other.LinkSetMTU(r.link(r.other), 1333))
	awaitMTU(t, d, 1333)
	read := make(chan error, 1)
	go func() { read <- readUntilError(d.Queues()[0]) }()
	r.closeOther()
	awaitMTU(t, d, 0)
	if err := <-read; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Read: got error %v, want %v", err, os.ErrClosed)
	}
	expect.NoError(t, d.Close())
	r.close()
	wantFiles(t, before)
}

func readUntilError(q tun.Queue) error {
	bufs, sizes := [][]byte{make([]byte, tun.MaxTrain)}, []int{0}
	for {
		if _, err := q.Read(bufs, sizes); err != nil {
			return err
		}
	}
}

func TestEventsFollowMoveBackToOriginalNamespace(t *testing.T) {
	r := newNamespaces(t)
	d := open(t, tun.Config{Name: "rw0"})
	r.move(r.origin, r.otherNS)
	expect.NoError(t, r.other.LinkSetMTU(r.link(r.other), 1333))
	awaitMTU(t, d, 1333)
	r.move(r.other, r.originNS)
	expect.NoError(t, r.origin.LinkSetMTU(r.link(r.origin), 1334))
	awaitMTU(t, d, 1334)
	expect.NoError(t, r.origin.LinkDel(r.link(r.origin)))
	awaitMTU(t, d, 0)
}

// TestEventsFollowMoveBetweenOtherNamespaces: the third namespace has no nsid in the first.
func TestEventsFollowMoveBetweenOtherNamespaces(t *testing.T) {
	r := newNamespaces(t)
	d := open(t, tun.Config{Name: "rw0"})
	r.move(r.origin, r.otherNS)
	third, err := netns.New()
	expect.NoError(t, err)
	defer third.Close()
	expect.NoError(t, netns.Set(r.originNS))
	farther := r.enableIPv6(third)
	defer farther.Close()
	expect.NoError(t, r.other.LinkSetMTU(r.link(r.other), 1333))
	awaitMTU(t, d, 1333)
	r.move(r.other, third)
	for mtu := 1334; mtu < 1337; mtu++ {
		expect.NoError(t, farther.LinkSetMTU(r.link(farther), mtu))
		awaitMTU(t, d, mtu)
	}
	expect.NoError(t, farther.LinkDel(r.link(farther)))
	awaitMTU(t, d, 0)
}

func TestKernelLinkLocalAddressIsRemoved(t *testing.T) {
	type step = func(*namespaces, *netlink.Handle)
	up := func(r *namespaces, h *netlink.Handle) { expect.NoError(t, h.LinkSetUp(r.link(h))) }
	down := func(r *namespaces, h *netlink.Handle) { expect.NoError(t, h.LinkSetDown(r.link(h))) }
	mtu := func(n int) step {
		return func(r *namespaces, h *netlink.Handle) { expect.NoError(t, h.LinkSetMTU(r.link(h), n)) }
	}
	for name, steps := range map[string][]step{
		"up":                       {up},
		"up again":                 {up, down, up},
		"small and back":           {up, mtu(1200), mtu(1400)},
		"small and back down":      {mtu(1200), mtu(1400), up},
		"small, up, then back":     {mtu(1200), up, mtu(1400)},
		"small and back, up again": {up, mtu(1279), mtu(1280), down, up},
	} {
		for _, moved := range []bool{false, true} {
			t.Run(name+map[bool]string{true: " in other namespace"}[moved], func(t *testing.T) {
				r := newNamespaces(t)
				open(t, tun.Config{Name: "rw0"})
				h := r.origin
				if moved {
					r.move(r.origin, r.otherNS)
					h = r.other
				}
				for _, s := range steps {
					s(r, h)
				}
				r.awaitNoAddress(h)
			})
		}
	}
}

func TestConfiguredLinkLocalAddressStays(t *testing.T) {
	r := newNamespaces(t)
	d := open(t, tun.Config{Name: "rw0"})
	expect.NoError(t, r.origin.LinkSetUp(r.link(r.origin)))
	configured := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("fe80::1"), Mask: net.CIDRMask(64, 128)}}
	if err := r.origin.AddrAdd(r.link(r.origin), configured); err != nil {
		t.Skipf("needs IPv6: %v", err)
	}
	expect.NoError(t, r.origin.LinkSetMTU(r.link(r.origin), 1333))
	awaitMTU(t, d, 1333)
	expect.NoError(t, r.origin.LinkSetDown(r.link(r.origin))) // also removes the address
	expect.NoError(t, r.origin.AddrReplace(r.link(r.origin), configured))
	expect.NoError(t, r.origin.LinkSetUp(r.link(r.origin)))
	expect.NoError(t, r.origin.LinkSetMTU(r.link(r.origin), 1334))
	awaitMTU(t, d, 1334)
	addresses, err := r.origin.AddrList(r.link(r.origin), netlink.FAMILY_V6)
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		addresses, err = r.origin.AddrList(r.link(r.origin), netlink.FAMILY_V6)
	}
	expect.NoError(t, err)
	if len(addresses) != 1 || !addresses[0].IP.Equal(configured.IP) {
		t.Errorf("addresses are %v", addresses)
	}
}

// awaitNoAddress waits until the interface has no IPv6 address. The kernel may generate one before the monitor disables it.
func (n *namespaces) awaitNoAddress(h *netlink.Handle) {
	n.t.Helper()
	expect.EventuallyNoError(n.t, "the interface has no address", func() error {
		addresses, err := h.AddrList(n.link(h), netlink.FAMILY_V6)
		if err == nil && len(addresses) > 0 {
			err = fmt.Errorf("addresses are %v", addresses)
		}
		return err
	})
}
