// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

func parsed(t *testing.T, message []byte) []linkChange {
	t.Helper()
	f := &linkSubscription{index: 12, changes: make(chan linkChange, 16), done: make(chan struct{})}
	if !f.handle(message, nil, nil) {
		t.Error("stops reading")
	}
	close(f.changes)
	var all []linkChange
	for c := range f.changes {
		all = append(all, c)
	}
	return all
}

func TestLinkSubscriptionReportsOnlyItsLink(t *testing.T) {
	up := linkMessage(unix.RTM_NEWLINK, 12)
	up[unix.NLMSG_HDRLEN+8] = unix.IFF_UP
	ofBridge := linkMessage(unix.RTM_DELLINK, 12)
	ofBridge[unix.NLMSG_HDRLEN] = unix.AF_BRIDGE
	for name, tt := range map[string]struct {
		message []byte
		want    []linkChange
	}{
		"the link is up":       {up, []linkChange{{state: Event{Up: true}}}},
		"it is deleted":        {linkMessage(unix.RTM_DELLINK, 12), []linkChange{{gone: true}}},
		"it leaves a bridge":   {ofBridge, nil},
		"another is deleted":   {linkMessage(unix.RTM_DELLINK, 13), nil},
		"it gets an address":   {linkMessage(unix.RTM_NEWADDR, 12), nil},
		"two, one about it":    {append(linkMessage(unix.RTM_DELLINK, 13), linkMessage(unix.RTM_DELLINK, 12)...), []linkChange{{gone: true}}},
		"there is nothing new": {nil, nil},
	} {
		got := parsed(t, tt.message)
		if len(got) != len(tt.want) || len(got) == 1 && got[0] != tt.want[0] {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

func TestLinkSubscriptionClosesOnLostMessages(t *testing.T) {
	for name, tt := range map[string]struct {
		message []byte
		err     error
	}{
		"the socket's buffer was full": {nil, unix.ENOBUFS},
		"a message was cut off":        {nil, errTruncated},
		"a message cannot be read":     {linkMessage(unix.RTM_NEWLINK, 12)[:20], nil},
		"an attribute cannot be read":  {withAttribute(linkMessage(unix.RTM_NEWLINK, 12), 3), nil},
	} {
		f := &linkSubscription{index: 12, changes: make(chan linkChange)}
		if f.handle(tt.message, nil, tt.err) {
			t.Errorf("%s: continues to read", name)
		}
		select {
		case _, ok := <-f.changes:
			if ok {
				t.Errorf("%s: reports a change", name)
			}
		default:
			t.Errorf("%s: the channel stays open", name)
		}
	}
}

// TestLinkCloseWithPendingChanges: more changes are queued than the channel holds, and nobody reads.
func TestLinkCloseWithPendingChanges(t *testing.T) {
	twoNamespaces(t)
	lo, err := netlink.LinkByName("lo")
	expect.NoError(t, err)
	for range 5 {
		l, err := followLink(nil, "lo")
		expect.NoError(t, err)
		for i := range 2 * cap(l.subscription.changes) {
			expect.NoError(t, netlink.LinkSetMTU(lo, 1300+i%2))
		}
		closed := make(chan struct{})
		go func() {
			l.close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(time.Minute):
			t.Fatal("close blocks")
		}
	}
}

// withAttribute appends an attribute header with that length.
func withAttribute(message []byte, length uint16) []byte {
	message = binary.NativeEndian.AppendUint16(message, length)
	message = binary.NativeEndian.AppendUint16(message, unix.IFLA_MTU)
	binary.NativeEndian.PutUint32(message, uint32(len(message)))
	return message
}
