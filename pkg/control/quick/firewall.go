// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// Firewall is the tool that filters packets on the host.
type Firewall uint8

const (
	NoFirewall Firewall = iota
	Nftables
	Iptables
)

// firewalls returns the tool for each family. It prefers nft, as wg-quick does.
func (t Tools) firewalls() map[hostnet.Family]Firewall {
	tools := map[hostnet.Family]Firewall{}
	for _, family := range hostnet.Families() {
		switch {
		case t.Nft != "":
			tools[family] = Nftables
		case t.iptablesRestore(family) != "":
			tools[family] = Iptables
		}
	}
	return tools
}

func (t Tools) iptablesRestore(family hostnet.Family) string {
	if family == hostnet.IPv6 {
		return t.Ip6tablesRestore
	}
	return t.IptablesRestore
}

// addFirewall adds the firewall rules for a default route. They drop packets to the tunnel's addresses that arrive on other interfaces from
// non-local sources. They keep the mark of the tunnel's packets in conntrack, so that answers pass reverse path filtering.
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
		_, err = pipe(ctx, s.iptablesRules(), j.Tools.iptablesRestore(s.family), "-n")
	default:
		j.warn("neither nft nor %s is installed: packets to %s's %s addresses from other interfaces are not dropped, "+
			"and answers to the tunnel may not pass reverse path filtering", s.iptables(), s.link, s.family)
	}
	if err != nil {
		// iptables-restore commits table by table.
		return errors.Join(err, s.undo().run(context.WithoutCancel(ctx), j))
	}
	return nil
}

func (s addFirewall) undo() Step { return removeFirewall{s.link} }

// nftTable returns the name of an interface's nftables tables. It is wg-quick's name, so that wg-quick finds them.
func nftTable(link string) string { return "wg-quick-" + link }

// nftRules returns one transaction for nft. It first flushes tables that an earlier daemon may have left.
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

// ruleComment returns the comment by which an interface's iptables rules are found. It is wg-quick's.
func ruleComment(link string) string {
	return `-m comment --comment "wg-quick(8) rule for ` + link + `"`
}

// iptablesRules returns input for iptables-restore -n.
func (s addFirewall) iptablesRules() string {
	var b strings.Builder
	b.WriteString("*raw\n")
	for _, addr := range s.addrs {
		fmt.Fprintf(&b, "-I PREROUTING ! -i %s -d %s -m addrtype ! --src-type LOCAL -j DROP %s\n",
			s.link, addr, ruleComment(s.link))
	}
	b.WriteString("COMMIT\n*mangle\n")
	fmt.Fprintf(&b, "-I POSTROUTING -m mark --mark %d -p udp -j CONNMARK --save-mark %s\n", s.mark, ruleComment(s.link))
	fmt.Fprintf(&b, "-I PREROUTING -p udp -j CONNMARK --restore-mark %s\nCOMMIT\n", ruleComment(s.link))
	return b.String()
}

// removeFirewall deletes all rules of addFirewall for the interface, of both address families and both tools.
type removeFirewall struct{ link string }

func (s removeFirewall) run(ctx context.Context, j *job) error {
	t := j.Tools
	return errors.Join(
		s.removeNft(ctx, j),
		s.removeIptables(ctx, j, t.IptablesSave, t.IptablesRestore),
		s.removeIptables(ctx, j, t.Ip6tablesSave, t.Ip6tablesRestore))
}

func (s removeFirewall) removeNft(ctx context.Context, j *job) error {
	if j.Tools.Nft == "" {
		return nil
	}
	tables, err := pipe(ctx, "", j.Tools.Nft, "list", "tables")
	if err != nil {
		return nil // a kernel that cannot list tables has none
	}
	deletions := s.nftDeletions(tables)
	if deletions == "" {
		return nil
	}
	j.echo("nft -f -")
	_, err = pipe(ctx, deletions, j.Tools.Nft, "-f", "-")
	return err
}

// nftDeletions returns nft commands that delete the interface's tables. tables is the output of `nft list tables`, such as
// "table ip wg-quick-wg0".
func (s removeFirewall) nftDeletions(tables string) string {
	var b strings.Builder
	for line := range strings.Lines(tables) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "table" && fields[2] == nftTable(s.link) {
			fmt.Fprintf(&b, "delete table %s %s\n", fields[1], fields[2])
		}
	}
	return b.String()
}

func (s removeFirewall) removeIptables(ctx context.Context, j *job, save, restore string) error {
	if save == "" || restore == "" {
		return nil
	}
	rules, err := pipe(ctx, "", save)
	if err != nil {
		return nil // a kernel that cannot list rules has none
	}
	deletions := s.iptablesDeletions(rules)
	if deletions == "" {
		return nil
	}
	j.echo(filepath.Base(restore) + " -n")
	_, err = pipe(ctx, deletions, restore, "-n")
	return err
}

// iptablesDeletions converts output of iptables-save into input for iptables-restore -n that deletes the interface's rules.
func (s removeFirewall) iptablesDeletions(rules string) string {
	var b strings.Builder
	found := false
	for line := range strings.Lines(rules) {
		rule, appended := strings.CutPrefix(line, "-A ")
		switch {
		case appended && strings.Contains(rule, ruleComment(s.link)):
			found = true
			b.WriteString("-D " + rule)
		case strings.HasPrefix(line, "*"), strings.TrimSpace(line) == "COMMIT":
			b.WriteString(line)
		}
	}
	if !found {
		return ""
	}
	return b.String()
}
