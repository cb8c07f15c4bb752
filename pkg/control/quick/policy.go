// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"fmt"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// addMarkRule adds a rule that routes all packets without the mark by the table of the same number. The tunnel's own packets have the mark.
type addMarkRule struct {
	family hostnet.Family
	mark   uint32
}

func (s addMarkRule) String() string {
	return fmt.Sprintf("ip %s rule add not fwmark %d table %d", familyFlag(s.family), s.mark, s.mark)
}

func (s addMarkRule) run(context.Context, *job) error {
	return hostnet.AddRule(hostnet.Rule{Family: s.family, Table: s.mark, NotMark: s.mark})
}

func (s addMarkRule) undo() Step { return removeRules(s) }

// addSuppressRule adds a rule that looks up the main table, without its default routes, before the rule of addMarkRule.
type addSuppressRule struct {
	family hostnet.Family
	mark   uint32 // of the addMarkRule that it belongs to
}

func (s addSuppressRule) String() string {
	return fmt.Sprintf("ip %s rule add table main suppress_prefixlength 0", familyFlag(s.family))
}

func (s addSuppressRule) run(_ context.Context, j *job) error {
	if err := hostnet.AddRule(hostnet.Rule{Family: s.family, Table: hostnet.MainTable, SuppressDefault: true}); err != nil {
		return err
	}
	rules, err := hostnet.Rules(s.family)
	n := slices.IndexFunc(rules, suppresses) // the kernel adds a rule before all others
	if err != nil || n < 0 {
		return err
	}
	return j.updateState(func(st *state) {
		if st.Suppress == nil {
			st.Suppress = map[string]int{}
		}
		st.Suppress[removeRules(s).key()] = rules[n].Priority
	})
}

func (s addSuppressRule) undo() Step { return removeRules(s) }

// removeRules deletes and echoes the rules of addMarkRule and addSuppressRule. Unlike wg-quick it keeps the suppress rules of other
// tunnels.
type removeRules struct {
	family hostnet.Family
	mark   uint32
}

func (s removeRules) run(_ context.Context, j *job) error {
	rules, err := hostnet.Rules(s.family)
	if err != nil {
		return err
	}
	st, _ := j.loadState()
	priority, recorded := st.Suppress[s.key()]
	picked := s.selectRules(rules)
	if recorded && !slices.ContainsFunc(picked, suppresses) { // another program has deleted its mark rule
		picked = append(picked, selectLeft(rules, priority)...)
	}
	for _, rule := range picked {
		j.echo(s.deletion(rule))
		if err := hostnet.DeleteRule(rule); err != nil {
			return err
		}
	}
	if !recorded {
		return nil
	}
	return j.updateState(func(st *state) { delete(st.Suppress, s.key()) })
}

// key is the key in the state's Suppress.
func (s removeRules) key() string { return fmt.Sprintf("%s %d", s.family, s.mark) }

func (s removeRules) deletion(rule hostnet.Rule) string {
	if rule.SuppressDefault {
		return fmt.Sprintf("ip %s rule delete table main suppress_prefixlength 0", familyFlag(s.family))
	}
	return fmt.Sprintf("ip %s rule delete table %d", familyFlag(s.family), s.mark)
}

// selectRules selects the tunnel's rules: the mark rules, and for each its suppress rule. The kernel gives the latter, added last, the
// priority below, but none below 0 (fib_default_rule_pref in net/core/fib_rules.c). It is returned, and so deleted, after the mark rule:
// with only the mark rule, packets for the main table's networks would enter the tunnel.
func (s removeRules) selectRules(rules []hostnet.Rule) []hostnet.Rule {
	var picked []hostnet.Rule
	for _, rule := range rules {
		if rule.Table != s.mark || rule.NotMark != s.mark {
			continue
		}
		picked = append(picked, rule)
		i := slices.IndexFunc(rules, func(r hostnet.Rule) bool { return suppresses(r) && r.Priority == max(rule.Priority-1, 0) })
		if i >= 0 {
			picked = append(picked, rules[i])
		}
	}
	return picked
}

// selectLeft selects the suppress rule of a priority, unless it is the one of another tunnel.
func selectLeft(rules []hostnet.Rule, priority int) (picked []hostnet.Rule) {
	for n, r := range rules {
		isOthers := n+1 < len(rules) && rules[n+1].NotMark != 0 && rules[n+1].Priority == priority+1
		if suppresses(r) && r.Priority == priority && !isOthers {
			picked = append(picked, r)
		}
	}
	return picked
}

func suppresses(r hostnet.Rule) bool {
	return r.SuppressDefault && r.NotMark == 0 && r.Table == hostnet.MainTable
}

// setSrcValidMark makes reverse path filtering use the mark. Without it, the kernel would drop the
// answers to the tunnel's packets: they arrive by another default route than unmarked packets.
// Down leaves it set, as wg-quick does: another tunnel may rely on it.
type setSrcValidMark struct{}

func (setSrcValidMark) String() string { return "sysctl -q net.ipv4.conf.all.src_valid_mark=1" }

func (setSrcValidMark) run(context.Context, *job) error { return hostnet.SetSrcValidMark(true) }

func (setSrcValidMark) undo() Step { return clearSrcValidMark{} }

type clearSrcValidMark struct{}

func (clearSrcValidMark) String() string { return "sysctl -q net.ipv4.conf.all.src_valid_mark=0" }

func (clearSrcValidMark) run(context.Context, *job) error { return hostnet.SetSrcValidMark(false) }
