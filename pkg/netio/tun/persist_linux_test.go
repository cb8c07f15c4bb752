// SPDX-License-Identifier: Apache-2.0

package tun_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
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
	for what, err := range map[string]error{"opened twice": openSecond(name), "removed in use": tun.Remove(name)} {
		if !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s: got error %v, want %v", what, err, syscall.EBUSY)
		}
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
	if err := errors.Join(again.Close(), tun.Remove(name), tun.Remove(name)); err != nil {
		t.Error(err)
	}
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
