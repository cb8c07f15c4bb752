// SPDX-License-Identifier: Apache-2.0

package tun_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestPersistentInterfaceIsReopenedAndRemoved(t *testing.T) {
	enterNamespace(t)
	const name = "rwkept"
	reopen := func() tun.Device {
		t.Helper()
		d, err := tun.Open(tun.Config{Name: name, Queues: 2, Persist: true})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	index := func() int {
		t.Helper()
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		return l.Attrs().Index
	}
	first := reopen()
	was := index()
	if err := openSecond(name); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("opened twice: got error %v, want %v", err, syscall.EBUSY)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if now := index(); now != was {
		t.Errorf("the interface was created anew: index %d, not %d", now, was)
	}
	again := reopen()
	if now := index(); now != was || len(again.Queues()) != 2 || (<-again.Events()).MTU != tun.DefaultMTU {
		t.Errorf("index %d, not %d; %d queues", now, was, len(again.Queues()))
	}
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = errors.Join(netlink.LinkSetMTU(link, 1300), again.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	again = reopen()
	if mtu := (<-again.Events()).MTU; mtu != 1300 {
		t.Errorf("got MTU %d without one in the options, want 1300, which the interface had", mtu)
	}
	if err := errors.Join(tun.Remove(name), tun.Remove(name)); err != nil { // in use, and gone
		t.Error(err)
	}
	_ = again.Close()
	if _, err := netlink.LinkByName(name); err == nil {
		t.Error("the interface is still there")
	}
}

func openSecond(name string) error {
	d, err := tun.Open(tun.Config{Name: name, Queues: 2, Persist: true})
	if err == nil {
		err = errors.Join(errors.New("a second Open succeeded"), d.Close())
	}
	return err
}

func TestForeignInterfacesAreNotReopenedOrRemoved(t *testing.T) {
	enterNamespace(t)
	for _, l := range []netlink.Link{
		&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "rwother"}},
		&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "rwtheirs"}, Mode: netlink.TUNTAP_MODE_TUN},
	} {
		if err := netlink.LinkAdd(l); err != nil {
			t.Logf("%s: %v", l.Attrs().Name, err)
			continue
		}
		if err := openSecond(l.Attrs().Name); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s is reused: got error %v, want %v", l.Attrs().Name, err, syscall.EBUSY)
		}
		if err := tun.Remove(l.Attrs().Name); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s is removed: got error %v, want %v", l.Attrs().Name, err, syscall.EBUSY)
		}
	}
}

// TestHeldCarrierOutlivesDevice: packets to an interface without a carrier may leave by other routes.
func TestHeldCarrierOutlivesDevice(t *testing.T) {
	enterNamespace(t)
	const name = "rwheld"
	if _, err := tun.HoldCarrier(name); !errors.As(err, &netlink.LinkNotFoundError{}) {
		t.Errorf("without an interface: got error %v, want %T", err, netlink.LinkNotFoundError{})
	}
	d := open(t, tun.Config{Name: name, Queues: 2, Persist: true})
	newHost(t, d).leaveUnseen()
	held, err := tun.HoldCarrier(name)
	expect.NoError(t, err)
	for range 2 {
		expect.NoError(t, d.Close())
		l, err := netlink.LinkByName(name)
		expect.NoError(t, err)
		if l.Attrs().RawFlags&unix.IFF_LOWER_UP == 0 {
			t.Error("the interface has no carrier")
		}
		d = open(t, tun.Config{Name: name, Queues: 3, Persist: true})
	}
	expect.NoError(t, errors.Join(d.Close(), tun.Remove(name)))
	if _, err := netlink.LinkByName(name); err == nil {
		t.Error("the interface is still there")
	}
	expect.NoError(t, held.Close())
}

// TestMovedPersistentInterfaceIsHandedOver has one that the receiver cannot mark.
func TestMovedPersistentInterfaceIsHandedOver(t *testing.T) {
	enterNamespace(t)
	d := open(t, tun.Config{Name: "rwmoved", Persist: true})
	there, err := netns.Get()
	expect.NoError(t, err)
	defer there.Close()
	here, err := netns.New()
	expect.NoError(t, err)
	defer here.Close()
	fds, err := d.(tun.HandoverDevice).DuplicateFDs()
	expect.NoError(t, err)
	received, err := tun.OpenFromFDs(fds, false, tun.Config{Name: "rwmoved", Persist: true})
	expect.NoError(t, err)
	expect.NoError(t, errors.Join(d.Close(), received.Close()))
	from, err := netlink.NewHandleAt(there)
	expect.NoError(t, err)
	defer from.Close()
	if _, err := from.LinkByName("rwmoved"); err != nil {
		t.Error(err)
	}
}
