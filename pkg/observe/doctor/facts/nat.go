// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// NAT is what rules do with connections: those of nftables, among them those of iptables-nft.
type NAT struct {
	// KeepsPorts are the rules that change the source address (masquerade, SNAT) without a random port.
	KeepsPorts []NATRule
	// Untracked are the rules that exempt packets from conntrack that this host sends.
	Untracked []NATRule
}

// readNAT reads the rules of all chains that the hooks output and postrouting reach, at least.
func (s source) readNAT() (nat NAT, err error) {
	if nat, err = s.legacyNAT(); err != nil {
		return nat, err
	}
	c, err := nftables.New()
	if err != nil {
		return nat, fmt.Errorf("opening nftables: %w", err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return nat, fmt.Errorf("listing the chains of nftables: %w", err)
	}
	for _, chain := range chains {
		masquerades, sends := reaches(chains, chain, nftables.ChainHookPostrouting, nftables.ChainTypeNAT), reaches(chains, chain, nftables.ChainHookOutput, nftables.ChainTypeFilter)
		if !masquerades && !sends {
			continue
		}
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			return nat, fmt.Errorf("listing the rules of the chain %s: %w", chain.Name, err)
		}
		bypassed := !isBeforeConntrack(chain)
		for _, rule := range rules {
			read, err := readRule(c, chain, rule)
			if err != nil {
				return nat, fmt.Errorf("reading a rule of the chain %s: %w", chain.Name, err)
			}
			if read.other {
				continue
			}
			if masquerades && slices.ContainsFunc(rule.Exprs, keepsPorts) {
				nat.KeepsPorts = append(nat.KeepsPorts, read.NATRule)
			}
			if sends && slices.ContainsFunc(rule.Exprs, isNotrack) {
				read.Partial = read.Partial || bypassed
				nat.Untracked = append(nat.Untracked, read.NATRule)
			}
			bypassed = bypassed || slices.ContainsFunc(rule.Exprs, leaves)
		}
	}
	return nat, nil
}

// legacyNAT returns the tables that iptables-legacy has, whose rules are not read.
func (s source) legacyNAT() (nat NAT, err error) {
	for file, family := range map[string]uint8{"ip_tables_names": unix.NFPROTO_IPV4, "ip6_tables_names": unix.NFPROTO_IPV6} {
		tables, err := s.text("proc/thread-self/net/" + file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nat, err
		}
		for _, table := range strings.Fields(tables) {
			rule := NATRule{Chain: table, Family: family, Unread: true}
			switch table {
			case "nat":
				nat.KeepsPorts = append(nat.KeepsPorts, rule)
			case "raw":
				nat.Untracked = append(nat.Untracked, rule)
			}
		}
	}
	return nat, nil
}

// readRule reads the conditions of a rule.
func readRule(c *nftables.Conn, chain *nftables.Chain, rule *nftables.Rule) (*ruleReader, error) {
	r := &ruleReader{
		NATRule: NATRule{Chain: fmt.Sprintf("%s %s %s", families[chain.Table.Family], chain.Table.Name, chain.Name)},
		set:     func(name string) ([]spread.Ports, error) { return portSet(c, chain.Table, name) },
	}
	if chain.Table.Family != nftables.TableFamilyINet {
		r.Family = uint8(chain.Table.Family)
	}
	for _, e := range rule.Exprs {
		if err := r.read(e); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// isBeforeConntrack reports whether a chain is at the hook output, before conntrack.
func isBeforeConntrack(c *nftables.Chain) bool {
	return c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookOutput && c.Priority != nil && *c.Priority < *nftables.ChainPriorityConntrack
}

// leaves reports whether the rules after an expression may not be reached.
func leaves(e expr.Any) bool {
	switch e := e.(type) {
	case *expr.Verdict:
		return e.Kind != expr.VerdictContinue
	case *expr.Target:
		return e.Name != "CT" && e.Name != "LOG" && e.Name != "NFLOG"
	}
	return false
}

// families are the names of the families that have NAT.
var families = map[nftables.TableFamily]string{
	nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
}

// reaches reports whether a hook may reach a chain: the chain is there, or it has no hook and another chain of the table is, whose rules may jump to it.
func reaches(chains []*nftables.Chain, to *nftables.Chain, hook *nftables.ChainHook, kind nftables.ChainType) bool {
	return families[to.Table.Family] != "" && slices.ContainsFunc(chains, func(c *nftables.Chain) bool {
		return c.Table.Name == to.Table.Name && c.Table.Family == to.Table.Family && c.Hooknum != nil && *c.Hooknum == *hook && c.Type == kind &&
			(to.Hooknum == nil || to.Name == c.Name)
	})
}

// isNotrack reports whether an expression exempts a packet from conntrack.
func isNotrack(e expr.Any) bool {
	if t, ok := e.(*expr.Target); ok { // of iptables: -j CT --notrack, or NOTRACK
		info, ok := t.Info.(*xt.Unknown) // struct xt_ct_target_info begins with the flags, XT_CT_NOTRACK the first
		return t.Name == "NOTRACK" || t.Name == "CT" && ok && len(*info) >= 2 && binary.NativeEndian.Uint16(*info)&1 != 0
	}
	_, ok := e.(*expr.Notrack)
	return ok
}

// keepsPorts reports whether an expression changes source addresses and keeps source ports where it can.
func keepsPorts(e expr.Any) bool {
	switch e := e.(type) {
	case *expr.Masq:
		return !e.Random && !e.FullyRandom
	case *expr.NAT:
		return e.Type == expr.NATTypeSourceNAT && !e.Random && !e.FullyRandom
	case *expr.Target:
		if e.Name != "MASQUERADE" && e.Name != "SNAT" && e.Name != "NETMAP" {
			return false
		}
		return natFlags(e.Info)&xt.NatRangeProtoRandomAll == 0
	}
	return false
}

// natFlags returns the flags of a target MASQUERADE or SNAT.
func natFlags(info xt.InfoAny) (flags xt.NatRangeFlags) {
	switch info := info.(type) {
	case *xt.NatIPv4MultiRangeCompat:
		for _, r := range *info {
			flags |= xt.NatRangeFlags(r.Flags)
		}
	case *xt.Unknown: // that of IPv6: struct nf_nat_range begins with the flags
		if len(*info) >= 4 {
			flags = xt.NatRangeFlags(binary.NativeEndian.Uint32(*info))
		}
	}
	return flags
}
