// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestRulesAreAddedFirstAndDeletedExactly(t *testing.T) {
	for _, family := range Families() {
		t.Run(family.String(), func(t *testing.T) {
			enterNamespace(t)
			before := mustRules(t, family)
			first := Rule{Family: family, Table: 51820, NotMark: 51820}
			second := Rule{Family: family, Table: MainTable, SuppressDefault: true}
			for _, r := range []Rule{first, second} {
				if err := AddRule(r); err != nil {
					t.Fatal(err)
				}
			}
			first.Priority, second.Priority = 32765, 32764
			want := slices.Insert(slices.Clone(before), 1, second, first)
			if diff := cmp.Diff(want, mustRules(t, family)); diff != "" {
				t.Error(diff)
			}
			for _, r := range []Rule{first, second} {
				if err := DeleteRule(r); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(before, mustRules(t, family)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestFamilyThatKernelLacksHasNoRules: a kernel with ipv6.disable=1 lacks IPv6, this one DECnet.
func TestFamilyThatKernelLacksHasNoRules(t *testing.T) {
	if rules, err := Rules(unix.AF_DECnet); len(rules) > 0 || err != nil {
		t.Errorf("got %v, error %v, want neither", rules, err)
	}
}

func TestRulesWithOtherSelectorsAreIgnored(t *testing.T) {
	enterNamespace(t)
	before := mustRules(t, IPv4)
	mask := uint32(0xff)
	others := []func(*netlink.Rule){
		func(r *netlink.Rule) { r.Src = ipNet(netip.MustParsePrefix("10.0.0.0/8")) },
		func(r *netlink.Rule) { r.IifName = "lo" },
		func(r *netlink.Rule) { r.Mark = 51820 },
		func(r *netlink.Rule) { r.Mark, r.Invert, r.Mask = 2, true, &mask },
		func(r *netlink.Rule) { r.Table, r.SuppressPrefixlen = int(MainTable), 8 },
	}
	for _, change := range others {
		r := netlink.NewRule()
		r.Table = 51820
		change(r)
		if err := netlink.RuleAdd(r); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(before, mustRules(t, IPv4)); diff != "" {
		t.Error(diff)
	}
}

func mustRules(t *testing.T, family Family) []Rule {
	t.Helper()
	rules, err := Rules(family)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func TestSrcValidMarkIsSetAndCleared(t *testing.T) {
	enterNamespace(t)
	for _, want := range []bool{true, false} {
		if err := SetSrcValidMark(want); err != nil {
			t.Skipf("needs a writable /proc/sys/net: %v", err)
		}
		if got, err := SrcValidMark(); err != nil || got != want {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	}
}
