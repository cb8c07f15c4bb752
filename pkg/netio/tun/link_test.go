// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestLinkKnowsItsChanges(t *testing.T) {
	l := &link{index: 12}
	for _, c := range []struct {
		index  int32
		family uint8
		want   bool
	}{{12, unix.AF_UNSPEC, true}, {13, unix.AF_UNSPEC, false}, {12, unix.AF_BRIDGE, false}} {
		var u netlink.LinkUpdate
		u.Index, u.Family = c.index, c.family
		if got := l.isAbout(&u); got != c.want {
			t.Errorf("index %d, family %d: got %t, want %t", c.index, c.family, got, c.want)
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
		for i := range 2 * cap(l.changes) {
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
