// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

func endpointOf(addr string) *underlay.Endpoint {
	return &underlay.Endpoint{Dst: netip.AddrPortFrom(netip.MustParseAddr(addr), 1)}
}

func notified(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestUnknownTargetIsRequestedOnce(t *testing.T) {
	wake := make(chan struct{}, 1)
	table := newTable(wake)
	a, b := newCache(table, wake), newCache(table, wake)
	for range 3 {
		for _, c := range []*cache{a, b} {
			if e := c.find(endpointOf("192.0.2.1")); e == nil || e.path.reason != Unresolved {
				t.Fatalf("got %+v, want non-nil", e)
			}
		}
	}
	asked := table.takeUnresolved()
	if len(asked) != 1 || asked[0].to != targetOf(endpointOf("192.0.2.1")) || !notified(wake) {
		t.Errorf("got requests %v, want length 1", asked)
	}
	if asked = table.takeUnresolved(); len(asked) != 0 {
		t.Errorf("requested %v again", asked)
	}
}

func TestCachesFollowTheTable(t *testing.T) {
	wake := make(chan struct{}, 1)
	table := newTable(wake)
	c, to := newCache(table, wake), endpointOf("2001:db8::1")
	c.find(to).tooLong = true
	c.find(endpointOf("2001:db8::2")).at.path.Store(&path{reason: NoRoute})
	if e := c.find(to); !e.tooLong {
		t.Error("a change of another path cleared tooLong")
	}
	at := c.find(to).at
	at.path.Store(&path{reason: ViaXDP})
	if e := c.find(to); e.tooLong || e.path.reason != ViaXDP {
		t.Errorf("got %+v, want tooLong false, path.reason %v", e, ViaXDP)
	}
	table.clear()
	if e := c.find(to); e.path.reason != Unresolved || e.at == at || at.path.Load() != nil {
		t.Errorf("got %+v, want path.reason %v", e, Unresolved)
	}
}

func TestPathUseWakesSupervisor(t *testing.T) {
	wake := make(chan struct{}, 1)
	table := newTable(wake)
	c, to := newCache(table, wake), endpointOf("192.0.2.1")
	p := c.find(to).at
	if notified(wake); !p.used.Load() {
		t.Error("a new path is not in use")
	}
	c.find(to)
	if notified(wake) {
		t.Error("a path in use woke the supervisor again")
	}
	p.used.Store(false)
	c.find(to)
	if !p.used.Load() || !notified(wake) {
		t.Error("use was not recorded, or did not wake the supervisor")
	}
}

func TestTableIsBounded(t *testing.T) {
	wake := make(chan struct{}, 1)
	table := newTable(wake)
	c := newCache(table, wake)
	addr := netip.MustParseAddr("10.0.0.0")
	for range maxTargets {
		addr = addr.Next()
		c.find(&underlay.Endpoint{Dst: netip.AddrPortFrom(addr, 1)})
	}
	if e := c.find(endpointOf("192.0.2.1")); e != nil {
		t.Errorf("got %+v, want nil", e)
	}
	table.remove(table.find(target{dst: addr}))
	if e := c.find(endpointOf("192.0.2.1")); e == nil {
		t.Error("the table is full after a removal")
	}
}

func TestTargetIgnoresPort(t *testing.T) {
	a, b := endpointOf("192.0.2.1"), endpointOf("192.0.2.1")
	b.Dst = netip.AddrPortFrom(b.Dst.Addr(), 2)
	b.Src = netip.MustParseAddr("2001:db8::1") // a source of the other family is ignored
	if targetOf(a) != targetOf(b) {
		t.Errorf("got targets %+v and %+v, want them equal", targetOf(a), targetOf(b))
	}
	b.Src = netip.MustParseAddr("192.0.2.9")
	if targetOf(a) == targetOf(b) {
		t.Error("targets with different sources are equal")
	}
}

func TestFindingPathDoesNotAllocate(t *testing.T) {
	wake := make(chan struct{}, 1)
	table := newTable(wake)
	c, to := newCache(table, wake), endpointOf("2001:db8::1")
	c.find(to)
	if n := testing.AllocsPerRun(100, func() { c.find(to) }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// TestRemovalOfOldPathKeepsNewOne: a lane requests a target again between the supervisor's list and the removal.
func TestRemovalOfOldPathKeepsNewOne(t *testing.T) {
	table := newTable(make(chan struct{}, 1))
	to := target{dst: netip.MustParseAddr("192.0.2.1")}
	before := table.find(to)
	table.clear()
	after := table.find(to)
	table.remove(before)
	if list := table.all(); len(list) != 1 || list[0] != after || after.path.Load() == nil {
		t.Errorf("the table has %v, want the path that was requested last", list)
	}
}
