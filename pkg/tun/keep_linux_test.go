// SPDX-License-Identifier: Apache-2.0

package tun_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/tun"
)

func TestPersistentInterfaceIsLeftBehindAdoptedAndRemoved(t *testing.T) {
	enterNamespace(t)
	const name = "rwkept"
	adopt := func() tun.Device {
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
	first := adopt()
	was := index()
	for what, err := range map[string]error{"opened twice": second(name), "removed in use": tun.Remove(name)} {
		if !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if now := index(); now != was {
		t.Errorf("it is another one: %d, not %d", now, was)
	}
	again := adopt()
	if now := index(); now != was || len(again.Queues()) != 2 || (<-again.Events()).MTU != tun.DefaultMTU {
		t.Errorf("%d, not %d; %d queues", now, was, len(again.Queues()))
	}
	if err := errors.Join(again.Close(), tun.Remove(name), tun.Remove(name)); err != nil {
		t.Error(err)
	}
	if _, err := netlink.LinkByName(name); err == nil {
		t.Error("it is still there")
	}
}

// TestAnInterfaceThatWasRenamedKeepsItsName: what belongs to it, such as the control socket, is still called so.
func TestAnInterfaceThatWasRenamedKeepsItsName(t *testing.T) {
	enterNamespace(t)
	d, err := tun.Open(tun.Config{Name: "rwbefore"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := netlink.LinkByName("rwbefore")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetName(l, "rwafter"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		fds, err := d.(tun.Keeper).Keep()
		if err := errors.Join(err, d.Close()); err != nil {
			t.Fatal(err)
		}
		if d, err = tun.Adopt(fds, false, tun.Config{Name: d.Name()}); err != nil {
			t.Fatal(err)
		}
		if d.Name() != "rwbefore" || (<-d.Events()).MTU != tun.DefaultMTU {
			t.Errorf("its name is %s", d.Name())
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func second(name string) error {
	d, err := tun.Open(tun.Config{Name: name, Queues: 2, Persist: true})
	if err == nil {
		err = errors.Join(errors.New("adopted"), d.Close())
	}
	return err
}

func TestInterfacesOfOthersAreNeitherAdoptedNorRemoved(t *testing.T) {
	enterNamespace(t)
	for _, l := range []netlink.Link{
		&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "rwother"}},
		&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "rwtheirs"}, Mode: netlink.TUNTAP_MODE_TUN},
	} {
		if err := netlink.LinkAdd(l); err != nil {
			t.Logf("%s: %v", l.Attrs().Name, err)
			continue
		}
		if err := second(l.Attrs().Name); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s is adopted: %v", l.Attrs().Name, err)
		}
		if err := tun.Remove(l.Attrs().Name); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s is removed: %v", l.Attrs().Name, err)
		}
	}
}

func TestAnotherDeviceGoesOnWithTheQueues(t *testing.T) {
	enterNamespace(t)
	first, err := tun.Open(tun.Config{Name: "rwkeep", Queues: 2})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	for _, q := range first.Queues() {
		go func() {
			_, err := q.Read([][]byte{make([]byte, tun.MaxElement)}, make([]int, 1))
			ended <- err
		}()
	}
	k := first.(tun.Keeper)
	fds, err := k.Keep()
	if err := errors.Join(err, k.StopReading()); err != nil {
		t.Fatal(err)
	}
	for range cap(ended) {
		if err := <-ended; !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	}
	if err := first.Queues()[0].Write([][]byte{make([]byte, 40)}); errors.Is(err, os.ErrClosed) {
		t.Error("it cannot be written to at rest")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := tun.Adopt(fds, true, tun.Config{})
	if err != nil {
		t.Fatal(err)
	}
	f := next.Features()
	if next.Name() != "rwkeep" || len(next.Queues()) != 2 || !f.Steer || f.TSO != first.Features().TSO {
		t.Errorf("%s, %d queues, %+v", next.Name(), len(next.Queues()), f)
	}
	<-next.Events()
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	if _, err := netlink.LinkByName("rwkeep"); err == nil {
		t.Error("the interface is still there")
	}
	if _, err := tun.Adopt([]int{0}, false, tun.Config{}); err == nil {
		t.Error("what is no queue is adopted")
	}
}
