// SPDX-License-Identifier: Apache-2.0

package tun_test

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/tun"
)

// realm is a second network namespace and the one that the test runs in, each as seen over a netlink socket.
type realm struct {
	t          *testing.T
	home, away *netlink.Handle
	homeNS     netns.NsHandle
	awayNS     netns.NsHandle
}

// newRealm makes the two namespaces, both with IPv6. Nothing but the realm keeps the one away.
func newRealm(t *testing.T) *realm {
	t.Helper()
	enterNamespace(t)
	r := &realm{t: t}
	var err error
	r.homeNS, err = netns.Get()
	r.must(err)
	r.home = r.enableIPv6(r.homeNS)
	r.awayNS, err = netns.New()
	r.must(err)
	r.away = r.enableIPv6(r.awayNS)
	r.must(netns.Set(r.homeNS))
	t.Cleanup(r.close)
	return r
}

func (r *realm) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// enableIPv6 is for the namespace of the thread.
func (r *realm) enableIPv6(ns netns.NsHandle) *netlink.Handle {
	r.t.Helper()
	err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("0"), 0)
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	r.must(err)
	return h
}

// leave is the end of the last process in the namespace away.
func (r *realm) leave() {
	if r.awayNS.IsOpen() {
		r.away.Close()
		r.awayNS.Close()
	}
}

func (r *realm) close() {
	r.leave()
	if r.homeNS.IsOpen() {
		r.home.Close()
		r.homeNS.Close()
	}
}

func (r *realm) link(h *netlink.Handle) netlink.Link {
	r.t.Helper()
	l, err := h.LinkByName("rw0")
	r.must(err)
	return l
}

func (r *realm) move(from *netlink.Handle, to netns.NsHandle) {
	r.t.Helper()
	r.must(from.LinkSetNsFd(r.link(from), int(to)))
}

func TestEndsWithTheNamespaceItWasMovedInto(t *testing.T) {
	newRealm(t).close() // the first sockets make the runtime open descriptors of its own
	before := openFiles(t)
	r := newRealm(t)
	d := open(t, tun.Config{Name: "rw0"})
	r.move(r.home, r.awayNS)
	r.must(r.away.LinkSetUp(r.link(r.away)))
	r.must(r.away.LinkSetMTU(r.link(r.away), 1333))
	awaitMTU(t, d, 1333)
	if err := d.SetTrainLimit(5000); err != nil {
		t.Errorf("setting the limit away: %v", err)
	}
	read := make(chan error, 1)
	go func() { read <- readUntilError(d.Queues()[0]) }()
	r.leave()
	awaitMTU(t, d, 0)
	if err := <-read; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Read: %v", err)
	}
	if err := d.SetTrainLimit(5000); !errors.Is(err, os.ErrClosed) {
		t.Errorf("setting the limit afterwards: %v", err)
	}
	r.must(d.Close())
	r.close()
	wantFiles(t, before)
}

func readUntilError(q tun.Queue) error {
	bufs, sizes := [][]byte{make([]byte, tun.MaxElement)}, []int{0}
	for {
		if _, err := q.Read(bufs, sizes); err != nil {
			return err
		}
	}
}

func TestEventsFollowTheInterfaceHomeAgain(t *testing.T) {
	r := newRealm(t)
	d := open(t, tun.Config{Name: "rw0"})
	r.move(r.home, r.awayNS)
	r.must(r.away.LinkSetMTU(r.link(r.away), 1333))
	awaitMTU(t, d, 1333)
	r.move(r.away, r.homeNS)
	r.must(r.home.LinkSetMTU(r.link(r.home), 1334))
	awaitMTU(t, d, 1334)
	r.must(r.home.LinkDel(r.link(r.home)))
	awaitMTU(t, d, 0)
}

// TestEventsFollowTheInterfaceFromAbroadToAbroad: the third namespace has no number in the first.
func TestEventsFollowTheInterfaceFromAbroadToAbroad(t *testing.T) {
	r := newRealm(t)
	d := open(t, tun.Config{Name: "rw0"})
	r.move(r.home, r.awayNS)
	third, err := netns.New()
	r.must(err)
	defer third.Close()
	r.must(netns.Set(r.homeNS))
	farther := r.enableIPv6(third)
	defer farther.Close()
	r.must(r.away.LinkSetMTU(r.link(r.away), 1333))
	awaitMTU(t, d, 1333)
	r.move(r.away, third)
	for mtu := 1334; mtu < 1337; mtu++ {
		r.must(farther.LinkSetMTU(r.link(farther), mtu))
		awaitMTU(t, d, mtu)
	}
	r.must(farther.LinkDel(r.link(farther)))
	awaitMTU(t, d, 0)
}

func TestKernelKeepsNoLinkLocalAddress(t *testing.T) {
	type step = func(*realm, *netlink.Handle)
	up := func(r *realm, h *netlink.Handle) { r.must(h.LinkSetUp(r.link(h))) }
	down := func(r *realm, h *netlink.Handle) { r.must(h.LinkSetDown(r.link(h))) }
	mtu := func(n int) step { return func(r *realm, h *netlink.Handle) { r.must(h.LinkSetMTU(r.link(h), n)) } }
	for name, steps := range map[string][]step{
		"up":                       {up},
		"up again":                 {up, down, up},
		"small and back":           {up, mtu(1200), mtu(1400)},
		"small and back down":      {mtu(1200), mtu(1400), up},
		"small, up, then back":     {mtu(1200), up, mtu(1400)},
		"small and back, up again": {up, mtu(1279), mtu(1280), down, up},
	} {
		for _, moved := range []bool{false, true} {
			t.Run(name+map[bool]string{true: " away"}[moved], func(t *testing.T) {
				r := newRealm(t)
				open(t, tun.Config{Name: "rw0"})
				h := r.home
				if moved {
					r.move(r.home, r.awayNS)
					h = r.away
				}
				for _, s := range steps {
					s(r, h)
				}
				r.awaitNoAddress(h)
			})
		}
	}
}

func TestOthersLinkLocalAddressesStay(t *testing.T) {
	r := newRealm(t)
	d := open(t, tun.Config{Name: "rw0"})
	r.must(r.home.LinkSetUp(r.link(r.home)))
	mine := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("fe80::1"), Mask: net.CIDRMask(64, 128)}}
	if err := r.home.AddrAdd(r.link(r.home), mine); err != nil {
		t.Skipf("needs IPv6: %v", err)
	}
	r.must(r.home.LinkSetMTU(r.link(r.home), 1333))
	awaitMTU(t, d, 1333)
	r.must(r.home.LinkSetDown(r.link(r.home))) // takes the address along
	r.must(r.home.AddrReplace(r.link(r.home), mine))
	r.must(r.home.LinkSetUp(r.link(r.home)))
	r.must(r.home.LinkSetMTU(r.link(r.home), 1334))
	awaitMTU(t, d, 1334)
	addresses, err := r.home.AddrList(r.link(r.home), netlink.FAMILY_V6)
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		addresses, err = r.home.AddrList(r.link(r.home), netlink.FAMILY_V6)
	}
	r.must(err)
	if len(addresses) != 1 || !addresses[0].IP.Equal(mine.IP) {
		t.Errorf("addresses are %v", addresses)
	}
}

// awaitNoAddress waits until the interface has no IPv6 address: the kernel may be quicker to make one than the monitor
// is to forbid it.
func (r *realm) awaitNoAddress(h *netlink.Handle) {
	r.t.Helper()
	var addresses []netlink.Addr
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		var err error
		addresses, err = h.AddrList(r.link(h), netlink.FAMILY_V6)
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			continue
		}
		r.must(err)
		if len(addresses) == 0 {
			return
		}
	}
	r.t.Errorf("addresses are %v", addresses)
}
