// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// namedLink returns a message about a link.
func namedLink(kind uint16, index int, name string) syscall.NetlinkMessage {
	data := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(data[4:], uint32(index))
	data = append(data, nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)).Serialize()...)
	return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: kind}, Data: data}
}

func TestNewIndexOfUsedLinkIsReported(t *testing.T) {
	added := func(index int, name string) syscall.NetlinkMessage { return namedLink(unix.RTM_NEWLINK, index, name) }
	deleted := func(index int, name string) syscall.NetlinkMessage { return namedLink(unix.RTM_DELLINK, index, name) }
	done := syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.NLMSG_DONE}}
	interrupted := added(2, "eth0")
	interrupted.Header.Flags = unix.NLM_F_DUMP_INTR
	port := deleted(2, "eth0")
	port.Data[0] = unix.AF_BRIDGE
	for name, c := range map[string]struct {
		messages []syscall.NetlinkMessage
		want     []string
	}{
		"deleted and added":          {[]syscall.NetlinkMessage{deleted(2, "eth0"), added(9, "eth0")}, []string{"eth0 2 9"}},
		"added with its index":       {[]syscall.NetlinkMessage{deleted(2, "eth0"), added(2, "eth0")}, nil},
		"added twice":                {[]syscall.NetlinkMessage{deleted(2, "eth0"), added(9, "eth0"), deleted(9, "eth0"), added(2, "eth0")}, []string{"eth0 2 9", "eth0 9 2"}},
		"added and renamed":          {[]syscall.NetlinkMessage{deleted(2, "eth0"), added(9, "usb0"), added(9, "eth0")}, []string{"eth0 2 9"}},
		"renamed before":             {[]syscall.NetlinkMessage{added(2, "lan"), deleted(2, "lan"), added(8, "eth0"), added(9, "lan")}, []string{"lan 2 9"}},
		"renamed, another has it":    {[]syscall.NetlinkMessage{added(2, "lan"), added(9, "eth0")}, nil},
		"not used":                   {[]syscall.NetlinkMessage{deleted(3, "eth1"), added(9, "eth1")}, nil},
		"lost messages":              {[]syscall.NetlinkMessage{added(3, "eth1"), added(9, "eth0"), done}, []string{"eth0 2 9"}},
		"lost, added later":          {[]syscall.NetlinkMessage{added(3, "eth1"), done, added(9, "eth0")}, []string{"eth0 2 9"}},
		"interrupted listing":        {[]syscall.NetlinkMessage{interrupted, done}, []string{"listing"}},
		"bridge port":                {[]syscall.NetlinkMessage{port, added(9, "eth0")}, nil},
		"of another name, then gone": {[]syscall.NetlinkMessage{deleted(2, "eth0"), added(9, "eth9"), deleted(9, "eth9")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			used := []int{2}
			w := newIndexWatch(new(atomic.Pointer[AbsentLinks]), func(index int) bool { return slices.Contains(used, index) }, func(name string, from, to int) {
				got = append(got, fmt.Sprint(name, " ", from, " ", to))
				used = []int{to}
			}, func() error { return nil })
			w.list()
			w.read([]syscall.NetlinkMessage{added(2, "eth0"), added(3, "eth1"), done})
			w.list() // after lost messages, unless nothing ends it
			w.read(c.messages)
			if w.stale {
				got = append(got, "listing")
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestAbsentLinksPassToNextWatch: the links are deleted in one process, and exist again in the next.
func TestAbsentLinksPassToNextWatch(t *testing.T) {
	var absent atomic.Pointer[AbsentLinks]
	var got []string
	watch := func(messages ...syscall.NetlinkMessage) {
		w := newIndexWatch(&absent, func(int) bool { return true }, func(name string, from, to int) {
			got = append(got, fmt.Sprint(name, " ", from, " ", to))
		}, nil)
		w.read(messages)
	}
	watch(namedLink(unix.RTM_NEWLINK, 2, "eth0"), namedLink(unix.RTM_NEWLINK, 3, "eth1"), namedLink(unix.RTM_DELLINK, 2, "eth0"), namedLink(unix.RTM_DELLINK, 3, "eth1"))
	watch(namedLink(unix.RTM_NEWLINK, 8, "eth0"))
	watch(namedLink(unix.RTM_NEWLINK, 8, "eth0"), namedLink(unix.RTM_NEWLINK, 9, "eth1"))
	if want := []string{"eth0 2 8", "eth1 3 9"}; !slices.Equal(got, want) || len(*absent.Load()) != 0 {
		t.Errorf("got %q, want %q; %v are left", got, want, *absent.Load())
	}
}

// TestFirstListingIsRepeatedAfterLostMessages: the kernel discards a listing's messages, too, when the socket's buffer is full.
func TestFirstListingIsRepeatedAfterLostMessages(t *testing.T) {
	type answer struct {
		messages []syscall.NetlinkMessage
		err      error
	}
	eth0 := namedLink(unix.RTM_NEWLINK, 2, "eth0")
	done := syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.NLMSG_DONE}}
	lost := answer{err: unix.ENOBUFS}
	complete := answer{messages: []syscall.NetlinkMessage{eth0, done}}
	for name, c := range map[string]struct {
		answers  []answer
		listings int
		err      error
	}{
		"nothing lost":      {[]answer{complete}, 1, nil},
		"lost twice":        {[]answer{lost, lost, complete}, 3, nil},
		"lost in between":   {[]answer{{messages: []syscall.NetlinkMessage{eth0}}, lost, complete}, 2, nil},
		"another error":     {[]answer{{err: unix.EBADF}}, 1, unix.EBADF},
		"always lost":       {slices.Repeat([]answer{lost}, dumpAttempts), dumpAttempts, nil},
		"lost, then failed": {[]answer{lost, {err: unix.EBADF}}, 2, unix.EBADF},
	} {
		t.Run(name, func(t *testing.T) {
			listings := 0
			w := newIndexWatch(new(atomic.Pointer[AbsentLinks]), func(int) bool { return false }, nil, func() error { listings++; return nil })
			err := w.listFirst(func() ([]syscall.NetlinkMessage, error) {
				next := c.answers[0]
				c.answers = c.answers[1:]
				return next.messages, next.err
			})
			if !errors.Is(err, c.err) || listings != c.listings || len(c.answers) != 0 {
				t.Errorf("got %v after %d listings, want %v after %d", err, listings, c.err, c.listings)
			}
			if known := w.names[2].name == "eth0" && !w.stale; known != (err == nil && c.listings < dumpAttempts) {
				t.Errorf("link known: %t; messages lost: %t", known, w.stale)
			}
		})
	}
}

func TestRecreatedLinkIsFoundInKernel(t *testing.T) {
	enterNamespace(t)
	addVeth(t, "uplink", "far")
	before, err := FindLink("uplink")
	expect.NoError(t, err)
	type move struct {
		name     string
		from, to int
	}
	moves := make(chan move, 10)
	expect.NoError(t, WatchIndexes(t.Context(), new(atomic.Pointer[AbsentLinks]), func(index int) bool { return index == before.Index }, func(name string, from, to int) {
		moves <- move{name, from, to}
	}))
	link, err := netlink.LinkByName("uplink")
	expect.NoError(t, err)
	expect.NoError(t, netlink.LinkDel(link))
	addVeth(t, "other", "otherfar")
	addVeth(t, "uplink", "far")
	after, err := FindLink("uplink")
	expect.NoError(t, err)
	expect.Eventually(t, "the new index is reported", func() bool { return len(moves) > 0 })
	if got, want := <-moves, (move{"uplink", before.Index, after.Index}); got != want || before.Index == after.Index {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
