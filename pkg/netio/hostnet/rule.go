// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Rule is a policy routing rule, limited to the two kinds that a tunnel's default route needs.
type Rule struct {
	Family          Family
	Table           uint32 // the table that the rule looks up
	NotMark         uint32 // match packets without this fwmark; 0 matches all
	SuppressDefault bool   // ignore default routes in the table (suppress_prefixlength 0)
	Priority        int    // set by Rules; ignored by AddRule
}

// AddRule adds a rule before all but the first rule of its family: the kernel puts a rule without a priority there.
func AddRule(r Rule) error {
	n := r.netlink()
	n.Priority = -1
	if err := netlink.RuleAdd(n); err != nil {
		return fmt.Errorf("adding %s rule for table %d: %w", r.Family, r.Table, err)
	}
	return nil
}

// DeleteRule deletes exactly this rule, including its priority.
func DeleteRule(r Rule) error {
	if err := netlink.RuleDel(r.netlink()); err != nil {
		return fmt.Errorf("deleting %s rule %d for table %d: %w", r.Family, r.Priority, r.Table, err)
	}
	return nil
}

// Rules lists the rules of a family that a Rule can represent, in the order in which the kernel applies them.
func Rules(family Family) ([]Rule, error) {
	list, err := ListRules(family, nil, 0)
	if err != nil {
		return nil, err
	}
	var rules []Rule
	for i := range list {
		if r, ok := ruleOf(&list[i], family); ok {
			rules = append(rules, r)
		}
	}
	return rules, nil
}

// LowestPriority returns the priority of the second rule of a family: those without a priority go
// between the first, for local addresses, and the second. Without a second rule it is the priority
// of the main table.
func LowestPriority(family Family) (int, error) {
	const mainPriority = 32766
	rules, err := ListRules(family, nil, 0)
	if err != nil || len(rules) < 2 {
		return mainPriority, err
	}
	return rules[1].Priority, nil
}

// ListRules returns the rules of a family that match a filter, as netlink.RuleListFiltered takes it. A kernel without the family (ipv6.disable=1)
// has none: unlike a list of routes, it refuses one of rules.
func ListRules(family Family, filter *netlink.Rule, mask uint64) ([]netlink.Rule, error) {
	list, err := Dump(func() ([]netlink.Rule, error) { return netlink.RuleListFiltered(int(family), filter, mask) })
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing %s rules: %w", family, err)
	}
	return list, nil
}

func (r Rule) netlink() *netlink.Rule {
	n := netlink.NewRule()
	n.Family = int(r.Family)
	n.Table = int(r.Table)
	n.Priority = r.Priority
	if r.NotMark != 0 {
		n.Invert, n.Mark = true, r.NotMark
	}
	if r.SuppressDefault {
		n.SuppressPrefixlen = 0
	}
	return n
}

// ruleOf reports whether a Rule can represent n. A rule with other selectors belongs to another program.
func ruleOf(n *netlink.Rule, family Family) (Rule, bool) {
	r := Rule{
		Family:          family,
		Table:           uint32(n.Table),
		SuppressDefault: n.SuppressPrefixlen == 0,
		Priority:        n.Priority,
	}
	if n.Invert {
		r.NotMark = n.Mark
	}
	foreign := n.Invert != (n.Mark != 0) || n.Mask != nil && *n.Mask != ^uint32(0) ||
		n.Src != nil || n.Dst != nil || n.IifName != "" || n.OifName != "" || n.Tos != 0 || n.Goto >= 0 ||
		n.Dport != nil || n.Sport != nil || n.IPProto != 0 || n.UIDRange != nil || n.TunID != 0 ||
		n.SuppressPrefixlen > 0 || n.SuppressIfgroup >= 0
	return r, !foreign
}
