// SPDX-License-Identifier: Apache-2.0

package tun_test

import (
	"errors"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
)

// TestRenamedInterfaceKeepsItsDeviceName: the control socket, too, is still named after it.
func TestRenamedInterfaceKeepsItsDeviceName(t *testing.T) {
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
		fds, err := d.(tun.HandoverDevice).DuplicateFDs()
		if err := errors.Join(err, d.Close()); err != nil {
			t.Fatal(err)
		}
		if d, err = tun.OpenFromFDs(fds, false, tun.Config{Name: d.Name()}); err != nil {
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

func TestHandoverContinuesOnSameQueues(t *testing.T) {
	enterNamespace(t)
	first, err := tun.Open(tun.Config{Name: "rwkeep", Queues: 2})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	for _, q := range first.Queues() {
		go func() {
			_, err := q.Read([][]byte{make([]byte, tun.MaxTrain)}, make([]int, 1))
			ended <- err
		}()
	}
	k := first.(tun.HandoverDevice)
	fds, err := k.DuplicateFDs()
	if err := errors.Join(err, first.StopReading()); err != nil {
		t.Fatal(err)
	}
	for range cap(ended) {
		if err := <-ended; !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	}
	if err := first.Queues()[0].Write([][]byte{make([]byte, 40)}); errors.Is(err, os.ErrClosed) {
		t.Error("Write fails after StopReading")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := tun.OpenFromFDs(fds, true, tun.Config{})
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
	if _, err := tun.OpenFromFDs([]int{0}, false, tun.Config{}); err == nil {
		t.Error("a descriptor that is no TUN queue was accepted")
	}
}
