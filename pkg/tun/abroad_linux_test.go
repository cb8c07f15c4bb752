// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// rtnl returns one rtnetlink message of that type about a link.
func rtnl(kind uint16, index uint32) []byte {
	b := make([]byte, unix.NLMSG_HDRLEN+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint32(b[unix.NLMSG_HDRLEN+4:], index)
	return b
}

// from returns the control message of one from a namespace of that number.
func from(number int32) []byte {
	b := make([]byte, unix.CmsgSpace(4))
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(4)))
	binary.NativeEndian.PutUint32(b[8:], unix.SOL_NETLINK)
	binary.NativeEndian.PutUint32(b[12:], unix.NETLINK_LISTEN_ALL_NSID)
	binary.NativeEndian.PutUint32(b[unix.CmsgLen(0):], uint32(number))
	return b
}

func TestOnlyWhatConcernsTheInterfaceIsHeardAbroad(t *testing.T) {
	const nsid, index = 7, 12
	for name, tt := range map[string]struct {
		message, control []byte
		watched          int64
		want             bool
	}{
		"the interface changes":            {rtnl(unix.RTM_NEWLINK, index), from(nsid), nsid, true},
		"it goes":                          {rtnl(unix.RTM_DELLINK, index), from(nsid), nsid, true},
		"it gets an address":               {rtnl(unix.RTM_NEWADDR, index), from(nsid), nsid, true},
		"another one there changes":        {rtnl(unix.RTM_NEWLINK, index+1), from(nsid), nsid, false},
		"one of its number elsewhere does": {rtnl(unix.RTM_NEWLINK, index), from(nsid + 1), nsid, false},
		"it may be anywhere":               {rtnl(unix.RTM_NEWLINK, 1), from(3), anywhere, true},
		"it may have come home":            {rtnl(unix.RTM_NEWLINK, 1), nil, nsid, true},
		"or not":                           {rtnl(unix.RTM_DELLINK, index), nil, nsid, false},
		"home has no number":               {rtnl(unix.RTM_NEWADDR, index), from(anywhere), nsid, false},
		"two messages": {
			append(rtnl(unix.RTM_NEWLINK, 1), rtnl(unix.RTM_NEWLINK, index)...), from(nsid), nsid, true,
		},
		"a message that is cut off": {rtnl(unix.RTM_NEWLINK, index)[:20], from(nsid), nsid, true},
		"none":                      {nil, nil, nsid, false},
	} {
		a := new(abroad)
		a.nsid.Store(tt.watched)
		a.index.Store(index)
		if got := a.concerns(tt.message, tt.control); got != tt.want {
			t.Errorf("%s: heard is %v", name, got)
		}
	}
}

func FuzzMessagesFromAbroad(f *testing.F) {
	f.Add(rtnl(unix.RTM_NEWLINK, 12), from(7))
	f.Add(rtnl(unix.RTM_DELLINK, 12)[:24], from(-1)[:18])
	f.Fuzz(func(_ *testing.T, message, control []byte) {
		a := new(abroad)
		a.nsid.Store(7)
		a.concerns(message, control)
	})
}

// TestHearsOfNamespacesWithAndWithoutANumber: the kernel gives a namespace a number when an interface is moved into it
// from ours, and not when it comes from elsewhere.
func TestHearsOfNamespacesWithAndWithoutANumber(t *testing.T) {
	here, there := twoNamespaces(t)
	a, err := openAbroad()
	if errors.Is(err, unix.EPERM) {
		t.Skip(err)
	}
	must(t, err)
	defer a.close()
	must(t, netns.Set(there))
	link, err := netlink.LinkByName("lo")
	must(t, err)
	must(t, netns.Set(here))
	for _, mtu := range []int{1400, 1401} { // begin may follow end
		must(t, a.begin())
		must(t, a.heed(there, link.Attrs().Index))
		must(t, netns.Set(there))
		must(t, netlink.LinkSetMTU(link, mtu))
		must(t, netns.Set(here))
		select {
		case <-a.heard:
		case <-time.After(20 * time.Second):
			t.Error("nothing is heard of another namespace")
		}
		a.end()
	}
}

// TestLooksAtIntervalsWhereItCannotBeginToListen: that the namespace has a number does not mean that it is heard.
func TestLooksAtIntervalsWhereItCannotBeginToListen(t *testing.T) {
	here, there := twoNamespaces(t)
	opened, err := Open(Config{Name: "rw0"})
	if err != nil {
		t.Skipf("needs a TUN device: %v", err)
	}
	defer opened.Close()
	m := opened.(*device).monitor
	if m.abroad == nil || m.home == "" {
		t.Skip("needs CAP_NET_BROADCAST and Linux 5.2")
	}
	must(t, m.abroad.socket.Close())
	link, err := netlink.LinkByName("rw0")
	must(t, err)
	must(t, netlink.LinkSetNsFd(link, int(there)))
	must(t, netns.Set(there))
	must(t, netlink.LinkSetMTU(link, 1333))
	must(t, netns.Set(here))
	for event := range opened.Events() {
		if event.MTU == 1333 {
			break
		}
	}
	must(t, opened.Close())
	if !m.deaf {
		t.Error("nothing can be heard, and nobody looks")
	}
}

// TestLooksAgainSoonAfterAChange: also when the first look failed, because the interface went on meanwhile.
func TestLooksAgainSoonAfterAChange(t *testing.T) {
	for _, tt := range []struct {
		changed, blind bool
		want           time.Duration
	}{
		{true, false, lookAgain},
		{true, true, lookAgain},
		{false, true, blindInterval},
		{false, false, 0},
	} {
		if got := pause(tt.changed, tt.blind); got != tt.want {
			t.Errorf("changed %v, blind %v: the next look is %v away, want %v", tt.changed, tt.blind, got, tt.want)
		}
	}
}

// TestQueuesTellTheMonitorThatTheInterfaceIsGone: nothing else would, where it ends with another namespace.
func TestQueuesTellTheMonitorThatTheInterfaceIsGone(t *testing.T) {
	lost := make(chan struct{}, 1)
	q := newQueue(-1, -1, lost, false)
	if err := q.goneOr(unix.EIO); !errors.Is(err, unix.EIO) || len(lost) != 0 {
		t.Errorf("an error that passes: %v, %d tokens", err, len(lost))
	}
	for range 2 { // the second finds the first's token
		if err := q.goneOr(unix.EBADFD); !errors.Is(err, os.ErrClosed) || len(lost) != 1 {
			t.Errorf("gone: %v, %d tokens", err, len(lost))
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// twoNamespaces puts the test's thread into the first of two new ones; it ends with the test.
func twoNamespaces(t *testing.T) (here, there netns.NsHandle) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("needs a network namespace: %v", err)
	}
	here, err := netns.Get()
	must(t, err)
	there, err = netns.New()
	must(t, err)
	must(t, netns.Set(here))
	t.Cleanup(func() {
		_, _ = here.Close(), there.Close()
	})
	return here, there
}
