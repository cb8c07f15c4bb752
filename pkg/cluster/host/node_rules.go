// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"math"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
)

// The rules for traffic between nodes, in the order in which the kernel takes them. An exemption continues behind the rule for the node
// table, so that all other rules of the host apply to it as they did before.
const (
	nodeTable         = 8283
	clearRulePriority = 8278 // goto nodeEndPriority
	nodeRulePriority  = 8279 // lookup nodeTable
	nodeEndPriority   = 8280 // no operation
)

// TunnelMark is the mark of the tunnel's own messages (SO_MARK): they are for addresses that lead into the tunnel. It has no bit that
// kube-proxy (0x4000, 0x8000), Cilium (0x0f00), Calico (0xffff0000) or Amazon's VPC CNI (0x80) use.
const TunnelMark = 0x52

// OldKernel returns the release of a kernel on which packets for the API server's Service would enter the tunnel, else "". Linux 5.10 ignores
// ports in rules when it routes a packet again that was translated in OUTPUT (ip_route_me_harder); 6.1 does not. This cannot be
// probed on the host, so the release decides. An unreadable one counts as new.
func OldKernel(release string) string {
	if r, ok := kernel.Parse(release); ok && r.Before(6, 1) {
		return release
	}
	return ""
}

// setNodeRules makes a family's rules equal to r, or removes all.
func setNodeRules(family hostnet.Family, r *Routing) (changes int, err error) {
	have, err := nodeRules(family)
	if err != nil {
		return 0, err
	}
	steps := removals(have, nil, nodeRulePriority, clearRulePriority, nodeEndPriority)
	if r != nil && r.Nodes.routes(family) {
		want := r.Nodes.rules(family)
		steps = append(additions(have, want, nodeEndPriority, clearRulePriority), removals(have, want, clearRulePriority, nodeEndPriority)...)
		steps = append(steps, additions(have, want, nodeRulePriority)...)
	}
	for _, step := range steps {
		if err := step.do(&step.rule); err != nil {
			return changes, fmt.Errorf("changing the %s rules for traffic between nodes (priority %d): %w", family, step.rule.Priority, err)
		}
		changes++
	}
	return changes, nil
}

// ruleStep is a change of a rule.
type ruleStep struct {
	do   func(*netlink.Rule) error
	rule netlink.Rule
}

// additions returns the steps that add the rules of want that are not in have, by priority.
func additions(have, want []netlink.Rule, priorities ...int) []ruleStep {
	return missing(netlink.RuleAdd, want, have, priorities)
}

// removals returns the steps that remove the rules of have that are not in want, by priority.
func removals(have, want []netlink.Rule, priorities ...int) []ruleStep {
	return missing(netlink.RuleDel, have, want, priorities)
}

func missing(do func(*netlink.Rule) error, all, others []netlink.Rule, priorities []int) (steps []ruleStep) {
	known := map[string]bool{}
	for i := range others {
		known[ruleID(&others[i])] = true
	}
	for _, priority := range priorities {
		for i := range all {
			if all[i].Priority == priority && !known[ruleID(&all[i])] {
				steps = append(steps, ruleStep{do, all[i]})
			}
		}
	}
	return steps
}

// ruleID describes what a rule matches and does.
func ruleID(r *netlink.Rule) string {
	ports := func(p *netlink.RulePortRange) netlink.RulePortRange {
		if p == nil {
			return netlink.RulePortRange{}
		}
		return *p
	}
	return fmt.Sprint(r.Priority, r.Src, r.Dst, r.Mark, r.IifName, r.IPProto, ports(r.Sport), ports(r.Dport), r.Table, r.Goto)
}

// nodeRules returns the rules of this agent and of earlier ones.
func nodeRules(family hostnet.Family) (own []netlink.Rule, err error) {
	all, err := hostnet.ListRules(family, nil, 0)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		if r.Protocol == uint8(routeProtocol) && r.Priority >= clearRulePriority && r.Priority <= nodeEndPriority {
			own = append(own, r)
		}
	}
	return own, nil
}

// rules returns the rules of an IP version.
func (n *NodeRouting) rules(family hostnet.Family) []netlink.Rule {
	end, lookup, marked := newNodeRule(family, nodeEndPriority), newNodeRule(family, nodeRulePriority), newNodeRule(family, clearRulePriority)
	mask := uint32(math.MaxUint32)
	end.Type, lookup.Table, marked.Mark, marked.Mask = nl.FR_ACT_NOP, nodeTable, TunnelMark, &mask
	all := []netlink.Rule{end, lookup, marked}
	for _, p := range n.Ports { // for rp_filter, which does not know the mark
		r := newNodeRule(family, clearRulePriority)
		r.IPProto, r.Sport, r.IifName = unix.IPPROTO_UDP, p.rule(), "lo"
		all = append(all, r)
	}
	for _, f := range n.clearFlows() {
		if f.concerns(family) && (!f.src.IsValid() || n.owns(f.src)) {
			all = append(all, f.rule(family))
		}
	}
	return all
}

// rule returns the rule for a flow that this node may send. Its source is not compared: while a socket connects, it has none.
func (f *clearFlow) rule(family hostnet.Family) netlink.Rule {
	r := newNodeRule(family, clearRulePriority)
	r.IPProto, r.Sport, r.Dport = f.protocol, f.sport.rule(), f.dport.rule()
	if f.src.IsValid() {
		r.IifName = "lo"
	}
	if f.dst.IsValid() {
		r.Dst = ipNet(f.dst)
	}
	return r
}

func newNodeRule(family hostnet.Family, priority int) netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Protocol = int(family), priority, uint8(routeProtocol)
	if priority == clearRulePriority {
		r.Goto = nodeEndPriority
	}
	return *r
}

// rule returns the range as rules have it; nil: all ports.
func (p PortRange) rule() *netlink.RulePortRange {
	if p == (PortRange{}) {
		return nil
	}
	return netlink.NewRulePortRange(p.First, p.Last)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
