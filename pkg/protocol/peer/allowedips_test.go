// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
)

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func add[T comparable](a *AllowedIPs[T], owner T, prefixes ...string) {
	a.Update(func(e *Editor[T]) {
		for _, p := range prefixes {
			e.Add(pfx(p), owner)
		}
	})
}

func TestAllowedIPsMatchTheLongestPrefix(t *testing.T) {
	var a AllowedIPs[string]
	add(&a, "default", "0.0.0.0/0", "::/0")
	add(&a, "ten", "10.0.0.0/8", "2001:db8::/32")
	add(&a, "host", "10.1.2.3/32", "2001:db8::1/128")
	for addr, want := range map[string]string{
		"192.0.2.1":         "default",
		"10.1.2.4":          "ten",
		"10.1.2.3":          "host",
		"2001:db9::1":       "default",
		"2001:db8::2":       "ten",
		"2001:db8::1":       "host",
		"::ffff:10.1.2.3":   "default",
		"fe80::1":           "default",
		"255.255.255.255":   "default",
		"2001:db8::1%scope": "host",
	} {
		if got, ok := a.Lookup(netip.MustParseAddr(addr)); !ok || got != want {
			t.Errorf("Lookup(%s) = %q, %v, want %q", addr, got, ok, want)
		}
	}
}

// A covering prefix must not let its owner speak for the address of a more specific one.
func TestMoreSpecificPrefixWins(t *testing.T) {
	var a AllowedIPs[string]
	add(&a, "wide", "10.0.0.0/8")
	add(&a, "narrow", "10.0.0.5/32")
	if owner, _ := a.Lookup(netip.MustParseAddr("10.0.0.5")); owner != "narrow" {
		t.Errorf("Lookup(10.0.0.5) = %q, want \"narrow\"", owner)
	}
}

func TestEmptyAllowedIPsMatchNothing(t *testing.T) {
	var a AllowedIPs[string]
	for _, addr := range []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::1"), {}} {
		if owner, ok := a.Lookup(addr); ok {
			t.Errorf("Lookup(%v) = %q, want no owner", addr, owner)
		}
	}
	if a.Len() != 0 || len(a.Prefixes("nobody")) != 0 {
		t.Error("an empty table: got prefixes, want none")
	}
}

func TestAddingAPrefixMovesItFromItsOwner(t *testing.T) {
	var a AllowedIPs[string]
	add(&a, "old", "10.0.0.0/24", "10.0.1.0/24")
	add(&a, "new", "10.0.0.7/24") // the host bits do not matter
	if owner, _ := a.Lookup(netip.MustParseAddr("10.0.0.1")); owner != "new" {
		t.Errorf("Lookup(10.0.0.1) = %q, want \"new\"", owner)
	}
	if got := a.Prefixes("old"); !slices.Equal(got, []netip.Prefix{pfx("10.0.1.0/24")}) {
		t.Errorf("Prefixes(old) = %v, want 10.0.1.0/24 only", got)
	}
	if got := a.Prefixes("new"); !slices.Equal(got, []netip.Prefix{pfx("10.0.0.0/24")}) {
		t.Errorf("Prefixes(new) = %v, want 10.0.0.0/24 only", got)
	}
}

func TestPrefixesAreListedInTheOrderTheyWereAdded(t *testing.T) {
	var a AllowedIPs[int]
	add(&a, 1, "fd00::/8", "10.0.0.0/8", "192.168.0.0/16", "10.0.0.0/8", "10.1.0.0/16")
	add(&a, 1, "fd00::/8")
	want := []netip.Prefix{pfx("fd00::/8"), pfx("10.0.0.0/8"), pfx("192.168.0.0/16"), pfx("10.1.0.0/16")}
	if got := a.Prefixes(1); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRemoveAffectsOnlyOwner(t *testing.T) {
	var a AllowedIPs[string]
	add(&a, "owner", "10.0.0.0/8")
	a.Update(func(e *Editor[string]) {
		if e.Remove(pfx("10.0.0.0/8"), "other") {
			t.Error("Remove by another owner = true, want false")
		}
		if e.Remove(pfx("10.0.0.0/9"), "owner") || e.Remove(netip.Prefix{}, "owner") || e.Add(netip.Prefix{}, "owner") {
			t.Error("Remove of an absent prefix, or Remove or Add of an invalid one = true, want false")
		}
		if !e.Remove(pfx("10.1.2.3/8"), "owner") {
			t.Error("Remove by the owner = false, want true")
		}
	})
	if a.Len() != 0 || len(a.owners) != 0 {
		t.Errorf("got %d prefixes of %d owners left, want none", a.Len(), len(a.owners))
	}
}

// Lanes see all changes of an Update or none.
func TestUpdateIsPublishedAtOnce(t *testing.T) {
	var a AllowedIPs[int]
	left, right := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")
	set := func(owner int) { add(&a, owner, "10.0.0.0/24", "2001:db8::/64") }
	set(0)
	done := make(chan struct{})
	var lanes sync.WaitGroup
	for range 2 {
		lanes.Go(func() {
			for {
				before, ok := a.Lookup(left)
				middle, ok2 := a.Lookup(right)
				after, _ := a.Lookup(left)
				if !ok || !ok2 || middle < before || after < middle {
					t.Errorf("owner went back during updates: got %d, then %d, then %d", before, middle, after)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for owner := range 2000 {
		set(owner)
	}
	close(done)
	lanes.Wait()
	if a.Len() != 2 {
		t.Errorf("got %d prefixes, want 2", a.Len())
	}
}

// Small updates share the table with the lanes, large ones copy it: neither may change what a lane is reading.
func TestUpdateNeverChangesThePublishedTable(t *testing.T) {
	for _, changes := range []int{1, 2, 5, 20, 100} {
		a := thousands(1000)
		before := a.table.Load()
		a.Update(func(e *Editor[int]) {
			for i := range changes {
				e.RemoveOwner(7 * i)
				e.Add(netip.PrefixFrom(addr4(10<<24|uint32(7*i+1)), 32), -1)
				e.Add(netip.PrefixFrom(addr4(10<<24|uint32(2000+i)), 32), -1)
			}
		})
		if n := before.Size(); n != 2000 {
			t.Errorf("after %d changes: a reader's old table has %d prefixes, want 2000", changes, n)
		}
		for i := range 1000 {
			addr := addr4(10<<24 | uint32(i))
			if r, ok := before.Lookup(addr); !ok || r.owner != i {
				t.Fatalf("after %d changes: old table: Lookup(%v) = %d, %v, want %d", changes, addr, r.owner, ok, i)
			}
			got, ok := a.Lookup(addr)
			want, found := i, true
			if i < 7*changes && i%7 == 0 {
				want, found = 0, false
			} else if i < 7*changes && i%7 == 1 {
				want = -1
			}
			if got != want || ok != found {
				t.Fatalf("%d changes: Lookup(%v) = %d, %v, want %d, %v", changes, addr, got, ok, want, found)
			}
		}
		if n := a.Len(); n != 2000-changes {
			t.Errorf("after %d changes: got %d prefixes, want %d", changes, n, 2000-changes)
		}
	}
}

// scan is the oracle: a list that is read from end to end.
type scan map[netip.Prefix]int

func (s scan) lookup(addr netip.Addr) (owner int, ok bool) {
	longest := -1
	for p, o := range s {
		if p.Contains(addr) && p.Bits() > longest {
			longest, owner, ok = p.Bits(), o, true
		}
	}
	return owner, ok
}

func (s scan) change(e *Editor[int], r *rand.Rand, p netip.Prefix, owner int) {
	switch n := r.IntN(20); {
	case n < 14:
		e.Add(p, owner)
		s[p] = owner
	case n < 19:
		e.Remove(p, owner)
		if o, ok := s[p]; ok && o == owner {
			delete(s, p)
		}
	default:
		e.RemoveOwner(owner)
		for q, o := range s {
			if o == owner {
				delete(s, q)
			}
		}
	}
}

// nearby returns an address of a small part of either family, so that prefixes nest and collide.
func nearby(r *rand.Rand) netip.Addr {
	if r.IntN(2) == 0 {
		return netip.AddrFrom4([4]byte{10, byte(r.IntN(3)), byte(r.IntN(3)), byte(r.IntN(256))})
	}
	return netip.AddrFrom16([16]byte{0x20, 1, 8: byte(r.IntN(3)), 14: byte(r.IntN(3)), 15: byte(r.IntN(256))})
}

func TestAllowedIPsMatchLinearScan(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 8))
		var a AllowedIPs[int]
		oracle := scan{}
		for range 150 {
			a.Update(func(e *Editor[int]) {
				for range r.IntN(5) {
					addr := nearby(r)
					p := netip.PrefixFrom(addr, r.IntN(addr.BitLen()+1)).Masked()
					oracle.change(e, r, p, r.IntN(12))
				}
			})
			for range 20 {
				addr := nearby(r)
				got, ok := a.Lookup(addr)
				if want, found := oracle.lookup(addr); got != want || ok != found {
					t.Fatalf("seed %d: Lookup(%v) = %d, %v, want %d, %v", seed, addr, got, ok, want, found)
				}
			}
		}
		if a.Len() != len(oracle) {
			t.Errorf("seed %d: got %d prefixes, want %d", seed, a.Len(), len(oracle))
		}
		checkLists(t, &a, oracle)
	}
}

func checkLists(t *testing.T, a *AllowedIPs[int], oracle scan) {
	t.Helper()
	listed := 0
	for owner := range 12 {
		for _, p := range a.Prefixes(owner) {
			listed++
			if o, ok := oracle[p]; !ok || o != owner {
				t.Errorf("listed %v for owner %d, want owner %d, present %v", p, owner, o, ok)
			}
		}
	}
	if listed != len(oracle) {
		t.Errorf("got %d prefixes listed, want %d", listed, len(oracle))
	}
}

// cloner has the method by which bart would copy values, and owners would lose their identity.
type cloner struct{ name string }

func (c *cloner) Clone() *cloner { return &cloner{c.name + "'s copy"} }

func TestUpdateNeverClonesOwners(t *testing.T) {
	var a AllowedIPs[*cloner]
	owner := &cloner{"owner"}
	add(&a, owner, "10.0.0.0/8", "10.1.0.0/16")
	add(&a, &cloner{"other"}, "10.2.0.0/16")
	if got, _ := a.Lookup(netip.MustParseAddr("10.1.0.1")); got != owner {
		t.Errorf("Lookup(10.1.0.1) = %v, want %v", got, owner)
	}
}

func thousands(n int) *AllowedIPs[int] {
	var a AllowedIPs[int]
	a.Update(func(e *Editor[int]) {
		for i := range n {
			e.Add(netip.PrefixFrom(addr4(10<<24|uint32(i)), 32), i)
			e.Add(netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 12: 1, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}), 128), i)
		}
	})
	return &a
}

func TestLookupAllocatesNothing(t *testing.T) {
	a := thousands(1000)
	v4, v6 := netip.MustParseAddr("10.0.0.77"), netip.MustParseAddr("fd00::1:0:4d")
	if n := testing.AllocsPerRun(100, func() {
		a.Lookup(v4)
		a.Lookup(v6)
	}); n != 0 {
		t.Errorf("got %v allocations per lookup, want 0", n)
	}
}
