// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// linkMessage returns one rtnetlink message of that type about a link.
func linkMessage(kind uint16, index uint32) []byte {
	b := make([]byte, unix.NLMSG_HDRLEN+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint32(b[unix.NLMSG_HDRLEN+4:], index)
	return b
}

// nsidControl returns the control message of a datagram from a namespace with that nsid.
func nsidControl(number int32) []byte {
	b := make([]byte, unix.CmsgSpace(4))
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(4)))
	binary.NativeEndian.PutUint32(b[8:], unix.SOL_NETLINK)
	binary.NativeEndian.PutUint32(b[12:], unix.NETLINK_LISTEN_ALL_NSID)
	binary.NativeEndian.PutUint32(b[unix.CmsgLen(0):], uint32(number))
	return b
}

func TestNSIDSubscriptionMatchesOnlyItsInterface(t *testing.T) {
	const nsid, index = 7, 12
	for name, tt := range map[string]struct {
		message, control []byte
		watched          int64
		want             bool
	}{
		"the interface changes":           {linkMessage(unix.RTM_NEWLINK, index), nsidControl(nsid), nsid, true},
		"it is deleted":                   {linkMessage(unix.RTM_DELLINK, index), nsidControl(nsid), nsid, true},
		"it gets an address":              {linkMessage(unix.RTM_NEWADDR, index), nsidControl(nsid), nsid, true},
		"another interface there changes": {linkMessage(unix.RTM_NEWLINK, index+1), nsidControl(nsid), nsid, false},
		"same index, other namespace":     {linkMessage(unix.RTM_NEWLINK, index), nsidControl(nsid + 1), nsid, false},
		"no filter is set":                {linkMessage(unix.RTM_NEWLINK, 1), nsidControl(3), nsidNotAssigned, true},
		"it may have moved back":          {linkMessage(unix.RTM_NEWLINK, 1), nil, nsid, true},
		"an interface is deleted here":    {linkMessage(unix.RTM_DELLINK, index), nil, nsid, false},
		"the own namespace has no nsid":   {linkMessage(unix.RTM_NEWADDR, index), nsidControl(nsidNotAssigned), nsid, false},
		"two messages": {
			append(linkMessage(unix.RTM_NEWLINK, 1), linkMessage(unix.RTM_NEWLINK, index)...), nsidControl(nsid), nsid, true,
		},
		"a truncated message": {linkMessage(unix.RTM_NEWLINK, index)[:20], nsidControl(nsid), nsid, true},
		"none":                {nil, nil, nsid, false},
	} {
		a := new(nsidSubscription)
		a.nsid.Store(tt.watched)
		a.index.Store(index)
		if got := a.matches(tt.message, tt.control); got != tt.want {
			t.Errorf("%s: matches = %v", name, got)
		}
	}
}

func FuzzNSIDSubscriptionMatches(f *testing.F) {
	f.Add(linkMessage(unix.RTM_NEWLINK, 12), nsidControl(7))
	f.Add(linkMessage(unix.RTM_DELLINK, 12)[:24], nsidControl(-1)[:18])
	f.Fuzz(func(_ *testing.T, message, control []byte) {
		a := new(nsidSubscription)
		a.nsid.Store(7)
		a.matches(message, control)
	})
}

// TestNSIDSubscriptionAssignsMissingNSID: the kernel assigns an nsid when an interface is moved into a namespace
// from ours, but not when it comes from another one.
func TestNSIDSubscriptionAssignsMissingNSID(t *testing.T) {
	here, there := twoNamespaces(t)
	a, err := openNSIDSubscription()
	if errors.Is(err, unix.EPERM) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	defer a.close()
	expect.NoError(t, netns.Set(there))
	link, err := netlink.LinkByName("lo")
	expect.NoError(t, err)
	expect.NoError(t, netns.Set(here))
	for _, mtu := range []int{1400, 1401} { // subscribe may follow unsubscribe
		expect.NoError(t, a.subscribe())
		expect.NoError(t, a.filter(there, link.Attrs().Index))
		expect.NoError(t, netns.Set(there))
		expect.NoError(t, netlink.LinkSetMTU(link, mtu))
		expect.NoError(t, netns.Set(here))
		select {
		case <-a.events:
		case <-time.After(20 * time.Second):
			t.Error("no event from the other namespace")
		}
		a.unsubscribe()
	}
}

// TestMonitorPollsWhenSubscribingFails: that the namespace has an nsid does not mean that its events arrive.
func TestMonitorPollsWhenSubscribingFails(t *testing.T) {
	here, there := twoNamespaces(t)
	opened, err := Open(Config{Name: "rw0"})
	if err != nil {
		t.Skipf("needs a TUN device: %v", err)
	}
	defer opened.Close()
	m := opened.(*device).monitor
	if m.nsids == nil || m.origin == "" {
		t.Skip("needs CAP_NET_BROADCAST and Linux 5.2")
	}
	expect.NoError(t, m.nsids.socket.Close())
	link, err := netlink.LinkByName("rw0")
	expect.NoError(t, err)
	expect.NoError(t, netlink.LinkSetNsFd(link, int(there)))
	expect.NoError(t, netns.Set(there))
	expect.NoError(t, netlink.LinkSetMTU(link, 1333))
	expect.NoError(t, netns.Set(here))
	for event := range opened.Events() {
		if event.MTU == 1333 {
			break
		}
	}
	expect.NoError(t, opened.Close())
	if !m.polling {
		t.Error("no events arrive, and the monitor does not poll")
	}
}

// TestMonitorLogsUnknownNamespace: a file that is not a TUN queue fails as every queue does before Linux 5.2.
func TestMonitorLogsUnknownNamespace(t *testing.T) {
	twoNamespaces(t)
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "rw0"}, PeerName: "rw1"}
	expect.NoError(t, netlink.LinkAdd(link))
	file, err := os.Open(os.DevNull)
	expect.NoError(t, err)
	defer file.Close()
	var log bytes.Buffer
	level := &slog.HandlerOptions{Level: slog.LevelDebug}
	m, err := startMonitor(int(file.Fd()), nil, "rw0", &Config{MTU: 1420, Log: slog.New(slog.NewTextHandler(&log, level))})
	expect.NoError(t, err)
	m.close()
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "namespace of the interface is unknown") || !strings.Contains(got, "interface=rw0") {
		t.Errorf("got log %q, want one line about rw0's namespace", got)
	}
}

// TestMonitorRechecksSoonAfterAnEvent: also when the first check failed because the interface was moved on.
func TestMonitorRechecksSoonAfterAnEvent(t *testing.T) {
	for _, tt := range []struct {
		changed, polling bool
		want             time.Duration
	}{
		{true, false, recheckDelay},
		{true, true, recheckDelay},
		{false, true, pollInterval},
		{false, false, 0},
	} {
		if got := nextCheck(tt.changed, tt.polling); got != tt.want {
			t.Errorf("changed %v, polling %v: the next check is in %v, want %v", tt.changed, tt.polling, got, tt.want)
		}
	}
}

// TestQueueSignalsDeletedInterface: no event reports a deletion together with another namespace.
func TestQueueSignalsDeletedInterface(t *testing.T) {
	deleted := make(chan struct{}, 1)
	q := newQueue(-1, -1, deleted, false)
	if err := q.signalIfDeleted(unix.EIO); !errors.Is(err, unix.EIO) || len(deleted) != 0 {
		t.Errorf("a transient error: got error %v, %d tokens, want %v, 0", err, len(deleted), unix.EIO)
	}
	for range 2 { // the second finds the first's token
		if err := q.signalIfDeleted(unix.EBADFD); !errors.Is(err, os.ErrClosed) || len(deleted) != 1 {
			t.Errorf("deleted: got error %v, %d tokens, want %v, 1", err, len(deleted), os.ErrClosed)
		}
	}
}

// twoNamespaces moves the test's thread into the first of two new namespaces. The thread ends with the test.
func twoNamespaces(t *testing.T) (here, there netns.NsHandle) {
	t.Helper()
	namespace.Enter(t)
	here, err := netns.Get()
	expect.NoError(t, err)
	there, err = netns.New()
	expect.NoError(t, err)
	expect.NoError(t, netns.Set(here))
	t.Cleanup(func() {
		_, _ = here.Close(), there.Close()
	})
	return here, there
}
