// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"context"
	"encoding/binary"
	"net/netip"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ndmsg returns a kernel message about a neighbour.
func ndmsg(family byte, device int32, state uint16, attrs ...[]byte) []byte {
	b := make([]byte, ndmsgLen)
	b[0] = family
	binary.NativeEndian.PutUint32(b[ndmIndex:], uint32(device))
	binary.NativeEndian.PutUint16(b[ndmState:], state)
	for _, a := range attrs {
		b = append(b, a...)
	}
	return b
}

func attr(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(attrHeader+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	return append(b, make([]byte, -len(b)&3)...)
}

func TestParseNeighbour(t *testing.T) {
	dst4, dst6 := attr(netlink.NDA_DST, []byte{192, 0, 2, 1}), attr(netlink.NDA_DST, netip.MustParseAddr("fe80::1").AsSlice())
	lladdr := attr(netlink.NDA_LLADDR, []byte{2, 0, 0, 0, 0, 1})
	other := attr(netlink.NDA_PROBES, []byte{1, 0, 0, 0})
	for name, c := range map[string]struct {
		data  []byte
		ok    bool
		hop   hop
		known bool
	}{
		"IPv4":           {ndmsg(unix.AF_INET, 3, netlink.NUD_REACHABLE, dst4, other, lladdr), true, hop{3, netip.MustParseAddr("192.0.2.1")}, true},
		"IPv6":           {ndmsg(unix.AF_INET6, 4, netlink.NUD_STALE, lladdr, dst6), true, hop{4, netip.MustParseAddr("fe80::1")}, true},
		"no padding":     {ndmsg(unix.AF_INET, 3, netlink.NUD_DELAY, dst4, lladdr[:10]), true, hop{3, netip.MustParseAddr("192.0.2.1")}, true},
		"incomplete":     {ndmsg(unix.AF_INET, 3, netlink.NUD_INCOMPLETE, dst4), true, hop{3, netip.MustParseAddr("192.0.2.1")}, false},
		"failed":         {ndmsg(unix.AF_INET, 3, netlink.NUD_FAILED, dst4, lladdr), true, hop{3, netip.MustParseAddr("192.0.2.1")}, false},
		"another length": {ndmsg(unix.AF_INET, 3, netlink.NUD_REACHABLE, dst4, attr(netlink.NDA_LLADDR, make([]byte, 20))), true, hop{3, netip.MustParseAddr("192.0.2.1")}, false},
		"a bridge's":     {ndmsg(unix.AF_BRIDGE, 3, netlink.NUD_REACHABLE, dst4), false, hop{3, netip.MustParseAddr("192.0.2.1")}, false},
		"no address":     {ndmsg(unix.AF_INET, 3, netlink.NUD_REACHABLE, lladdr), false, hop{device: 3}, true},
		"cut":            {ndmsg(unix.AF_INET, 3, 0)[:11], false, hop{}, false},
		"nothing":        {nil, false, hop{}, false},
	} {
		h, n, ok := parseNeighbour(c.data)
		if ok != c.ok || h != c.hop || n.known() != c.known {
			t.Errorf("%s: got %+v, %+v, %v, want %+v, %v", name, h, n, ok, c.hop, c.ok)
		}
	}
}

func FuzzParseNeighbour(f *testing.F) {
	f.Add(ndmsg(unix.AF_INET, 3, netlink.NUD_REACHABLE, attr(netlink.NDA_DST, []byte{192, 0, 2, 1}), attr(netlink.NDA_LLADDR, make([]byte, 6))))
	f.Add(ndmsg(unix.AF_INET6, 3, 0, []byte{3, 0, 1, 0}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if h, _, ok := parseNeighbour(data); ok && !h.addr.IsValid() {
			t.Errorf("got %+v", h)
		}
	})
}

func message16(kind uint16, data []byte) syscall.NetlinkMessage {
	return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: kind}, Data: data}
}

func TestWatcherRecordsOnlyRelevantMessages(t *testing.T) {
	watched := ndmsg(unix.AF_INET, 3, 0, attr(netlink.NDA_DST, []byte{192, 0, 2, 1}))
	stranger := ndmsg(unix.AF_INET, 3, 0, attr(netlink.NDA_DST, []byte{192, 0, 2, 2}))
	cloned := make([]byte, unix.SizeofRtMsg)
	binary.NativeEndian.PutUint32(cloned[8:], unix.RTM_F_CLONED)
	bridge := make([]byte, unix.SizeofIfInfomsg)
	bridge[0] = unix.AF_BRIDGE
	for name, c := range map[string]struct {
		message       syscall.NetlinkMessage
		changed, hops bool
	}{
		"a watched neighbour":       {message16(unix.RTM_NEWNEIGH, watched), false, true},
		"that goes":                 {message16(unix.RTM_DELNEIGH, watched), false, true},
		"another neighbour":         {message16(unix.RTM_NEWNEIGH, stranger), false, false},
		"a route":                   {message16(unix.RTM_NEWROUTE, make([]byte, unix.SizeofRtMsg)), true, false},
		"a route learned":           {message16(unix.RTM_NEWROUTE, cloned), false, false},
		"a link":                    {message16(unix.RTM_NEWLINK, make([]byte, unix.SizeofIfInfomsg)), true, false},
		"a link that goes":          {message16(unix.RTM_DELLINK, make([]byte, unix.SizeofIfInfomsg)), true, false},
		"a bridge's port":           {message16(unix.RTM_NEWLINK, bridge), false, false},
		"an address":                {message16(unix.RTM_DELADDR, nil), true, false},
		"a rule":                    {message16(unix.RTM_NEWRULE, nil), true, false},
		"a message that is cut":     {message16(unix.RTM_NEWLINK, nil), false, false},
		"something quite different": {message16(unix.RTM_NEWQDISC, nil), false, false},
	} {
		w := &watcher{watched: map[hop]struct{}{}, hops: map[hop]struct{}{}}
		w.addWatched(hop{3, netip.MustParseAddr("192.0.2.1")})
		matters := w.record([]syscall.NetlinkMessage{c.message}, nil)
		changed, hops := w.takeChanges()
		if changed != c.changed || len(hops) > 0 != c.hops || matters != (c.changed || c.hops) {
			t.Errorf("%s: got %v, %v, %v, want %v, %v", name, matters, changed, hops, (c.changed || c.hops), c.changed)
		}
	}
	w := &watcher{hops: map[hop]struct{}{}}
	if !w.record(nil, unix.ENOBUFS) {
		t.Error("record ignores missed messages")
	}
	if changed, _ := w.takeChanges(); !changed {
		t.Error("missed messages record no change")
	}
	if changed, _ := w.takeChanges(); changed {
		t.Error("takeChanges returned a change twice")
	}
}

// TestIdlePortHasNoTimer: no timer runs once no path was used between two reviews.
func TestIdlePortHasNoTimer(t *testing.T) {
	ctx := t.Context()
	wake := make(chan struct{}, 1)
	p := &Port{table: newTable(wake), wake: wake}
	k := &supervisor{port: p, watcher: &watcher{watched: map[hop]struct{}{}, hops: map[hop]struct{}{}}, ctx: ctx}
	var err error
	if k.resolver, err = newResolver(0); err != nil {
		t.Fatal(err)
	}
	defer k.resolver.nl.Close()
	if !k.nextDeadline().IsZero() {
		t.Error("a new supervisor has a deadline")
	}
	p.table.find(targetOf(endpointOf("192.0.2.1")))
	now := k.followAt.AddDate(2000, 0, 0)
	k.runOnce(now)
	if k.nextDeadline() != now.Add(defaultReviewInterval) {
		t.Errorf("the next review of a path in use is at %v", k.nextDeadline())
	}
	now = now.Add(defaultReviewInterval)
	k.runOnce(now)
	if k.nextDeadline() != now.Add(defaultReviewInterval) {
		t.Errorf("the next review of a used path is at %v", k.nextDeadline())
	}
	now = now.Add(defaultReviewInterval)
	k.runOnce(now)
	if !k.nextDeadline().IsZero() {
		t.Errorf("the next review of an unused path is at %v", k.nextDeadline())
	}
	for range maxIdleReviews {
		p.table.find(targetOf(endpointOf("192.0.2.2"))).used.Store(true)
		now = now.Add(defaultReviewInterval)
		k.runOnce(now) // records the use
		now = now.Add(defaultReviewInterval)
		k.runOnce(now)
	}
	if len(p.table.all()) != 1 {
		t.Error("an unused path is never deleted")
	}
}

func TestNeighbourSubscriptionNeedsAFXDP(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	k := &supervisor{port: &Port{wake: make(chan struct{}, 1)}, ctx: ctx}
	for _, c := range []struct {
		binding Binding
		want    bool
	}{
		{Binding{}, false},
		{Binding{Device: "lo"}, true},
		{Binding{}, false},
	} {
		k.config.Binding = c.binding
		if err := k.startWatcher(); err != nil {
			t.Fatal(err)
		}
		if got := k.watcher.ofDevice; got != c.want {
			t.Errorf("%+v: subscribed to neighbours: got %v, want %v", c.binding, got, c.want)
		}
	}
	k.closeWatcher()
}

func TestWatcherEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w, err := watch(ctx, make(chan struct{}, 1), true)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	w.finished.Wait()
}
