// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/hostnet"
)

// Firewall is what filters packets on the host.
type Firewall uint8

const (
	NoFirewall Firewall = iota
	Nftables
	Iptables
)

// firewall prefers nft, as wg-quick does.
func (t Tools) firewall() Firewall {
	switch {
	case t.Nft != "":
		return Nftables
	case t.IptablesRestore != "" && t.Ip6tablesRestore != "":
		return Iptables
	}
	return NoFirewall
}

// addFirewall goes with a default route: packets to the tunnel's addresses that come from elsewhere are dropped unless a
// host's own, and the mark of the tunnel's packets is kept in conntrack, so that answers pass reverse path filtering.
type addFirewall struct {
	link   string
	family hostnet.Family
	addrs  []netip.Addr
	mark   uint32
	tool   Firewall
}

func (s addFirewall) String() string {
	switch s.tool {
	case Nftables:
		return "nft -f -"
	case Iptables:
		return s.iptables() + "-restore -n"
	}
	return ""
}

func (s addFirewall) run(ctx context.Context, j *job) error {
	var err error
	switch s.tool {
	case Nftables:
		_, err = pipe(ctx, s.nftRules(), j.Tools.Nft, "-f", "-")
	case Iptables:
		restore := j.Tools.IptablesRestore
		if s.family == hostnet.IPv6 {
			restore = j.Tools.Ip6tablesRestore
		}
		_, err = pipe(ctx, s.iptablesRules(), restore, "-n")
	default:
		j.warn("neither nft nor iptables is installed: packets to %s's addresses from other interfaces are not dropped, "+
			"and answers to the tunnel may not pass reverse path filtering", s.link)
	}
	if err != nil {
		// iptables-restore commits table by table.
		return errors.Join(err, s.undo().run(context.WithoutCancel(ctx), j))
	}
	return nil
}

func (s addFirewall) undo() Step { return removeFirewall{s.link} }

// nftTable is the name of an interface's nftables tables: wg-quick's, so that it finds them too.
func nftTable(link string) string { return "wg-quick-" + link }

// nftRules is one transaction for nft. The flush makes it the same whether or not an earlier table was left behind.
func (s addFirewall) nftRules() string {
	family := "ip"
	if s.family == hostnet.IPv6 {
		family = "ip6"
	}
	table := family + " " + nftTable(s.link)
	var b strings.Builder
	fmt.Fprintf(&b, "add table %s\nflush table %s\n", table, table)
	fmt.Fprintf(&b, "add chain %s preraw { type filter hook prerouting priority -300; }\n", table)
	fmt.Fprintf(&b, "add chain %s premangle { type filter hook prerouting priority -150; }\n", table)
	fmt.Fprintf(&b, "add chain %s postmangle { type filter hook postrouting priority -150; }\n", table)
	for _, addr := range s.addrs {
		fmt.Fprintf(&b, "add rule %s preraw iifname != %q %s daddr %s fib saddr type != local drop\n",
			table, s.link, family, addr)
	}
	fmt.Fprintf(&b, "add rule %s postmangle meta l4proto udp mark %d ct mark set mark\n", table, s.mark)
	fmt.Fprintf(&b, "add rule %s premangle meta l4proto udp meta mark set ct mark\n", table)
	return b.String()
}

func (s addFirewall) iptables() string {
	if s.family == hostnet.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// marker is how an interface's iptables rules are found again: wg-quick's comment.
func marker(link string) string { return `-m comment --comment "wg-quick(8) rule for ` + link + `"` }

// iptablesRules is input for iptables-restore -n.
func (s addFirewall) iptablesRules() string {
	var b strings.Builder
	b.WriteString("*raw\n")
	for _, addr := range s.addrs {
		fmt.Fprintf(&b, "-I PREROUTING ! -i %s -d %s -m addrtype ! --src-type LOCAL -j DROP %s\n",
			s.link, addr, marker(s.link))
	}
	b.WriteString("COMMIT\n*mangle\n")
	fmt.Fprintf(&b, "-I POSTROUTING -m mark --mark %d -p udp -j CONNMARK --save-mark %s\n", s.mark, marker(s.link))
	fmt.Fprintf(&b, "-I PREROUTING -p udp -j CONNMARK --restore-mark %s\nCOMMIT\n", marker(s.link))
	return b.String()
}
