// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
)

// NAT is what the rules of nftables, among them those of iptables-nft, do with connections.
type NAT struct {
	// KeepsPorts is the chain of the first rule that masquerades without a random port, such as "ip nat POSTROUTING"; empty for none.
	KeepsPorts string
	// Untracked is set if a rule exempts packets from conntrack that this host sends.
	Untracked bool
}

// readNAT reads the rules of all chains that the hooks output and postrouting reach, at least.
func readNAT() (nat NAT, err error) {
	c, err := nftables.New()
	if err != nil {
		return nat, fmt.Errorf("opening nftables: %w", err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return nat, fmt.Errorf("listing the chains of nftables: %w", err)
	}
	for _, chain := range chains {
		masquerades, sends := hasHook(chains, chain.Table, nftables.ChainHookPostrouting, nftables.ChainTypeNAT), hasHook(chains, chain.Table, nftables.ChainHookOutput, nftables.ChainTypeFilter)
		if !masquerades && !sends {
			continue
		}
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			return nat, fmt.Errorf("listing the rules of the chain %s: %w", chain.Name, err)
		}
		for _, rule := range rules {
			nat.Untracked = nat.Untracked || sends && slices.ContainsFunc(rule.Exprs, isNotrack)
			if masquerades && nat.KeepsPorts == "" && slices.ContainsFunc(rule.Exprs, keepsPorts) {
				nat.KeepsPorts = fmt.Sprintf("%s %s %s", families[chain.Table.Family], chain.Table.Name, chain.Name)
			}
		}
	}
	return nat, nil
}

// families are the names of the families that have NAT.
var families = map[nftables.TableFamily]string{
	nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
}

// hasHook reports whether a chain of a table is at a hook. Its rules may jump to all other chains of the table.
func hasHook(chains []*nftables.Chain, table *nftables.Table, hook *nftables.ChainHook, kind nftables.ChainType) bool {
	return families[table.Family] != "" && slices.ContainsFunc(chains, func(c *nftables.Chain) bool {
		return c.Table.Name == table.Name && c.Table.Family == table.Family && c.Hooknum != nil && *c.Hooknum == *hook && c.Type == kind
	})
}

// isNotrack reports whether an expression exempts a packet from conntrack.
func isNotrack(e expr.Any) bool {
	if t, ok := e.(*expr.Target); ok { // of iptables: -j CT --notrack, or NOTRACK
		return t.Name == "CT" || t.Name == "NOTRACK"
	}
	_, ok := e.(*expr.Notrack)
	return ok
}

// keepsPorts reports whether an expression masquerades and keeps source ports where it can.
func keepsPorts(e expr.Any) bool {
	switch e := e.(type) {
	case *expr.Masq:
		return !e.Random && !e.FullyRandom
	case *expr.Target:
		if e.Name != "MASQUERADE" {
			return false
		}
		return natFlags(e.Info)&xt.NatRangeProtoRandomAll == 0
	}
	return false
}

// natFlags returns the flags of a target MASQUERADE.
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
